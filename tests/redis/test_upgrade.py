"""An upgrade without downtime: workers of the previous commit and of this one share a fleet."""

import asyncio
import shutil
import subprocess
import tarfile
from datetime import timedelta
from io import BytesIO
from pathlib import Path

import pytest

from bub_redis.settings import Settings
from bub_redis.turns import TurnClient
from tests.redis.audit import committed_turns
from tests.redis.workers import kill, start_worker

ROOT = Path(__file__).parents[2]
AGENT = "tests.redis.agents:agent"
SESSIONS = 12
TURNS = 20


@pytest.fixture
def previous_tree(tmp_path: Path) -> Path:
    """The source of the commit before this one."""
    git = shutil.which("git")
    archive = subprocess.run([git or "git", "archive", "HEAD^"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip("there is no commit before this one here")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_old_and_new_workers_share_a_fleet(client: TurnClient, settings: Settings, previous_tree: Path) -> None:
    """Each is killed in turn, so that each goes on with what the other one began."""
    prompts = {f"s{s}": {f"m{t}": f"stock {t}" for t in range(TURNS)} for s in range(SESSIONS)}
    workers = [start_worker(settings, AGENT), start_worker(settings, AGENT, tree=previous_tree)]
    try:
        for session, asked in prompts.items():
            for turn_id, prompt in asked.items():
                await client.enqueue(session, prompt, turn_id=turn_id)
            place = len(session) % 2
            kill(workers[place])
            workers[place] = start_worker(settings, AGENT, tree=previous_tree if place else None)
            await client.result(client.turn(session, f"m{TURNS - 1}"), timeout=timedelta(seconds=60))
    finally:
        await asyncio.gather(*(asyncio.to_thread(kill, worker) for worker in workers))
    for session, asked in prompts.items():
        assert await committed_turns(client.store, session, asked) == list(asked)
