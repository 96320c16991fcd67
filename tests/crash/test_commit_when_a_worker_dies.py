"""The crash table of docs/design.md: a worker is killed with SIGKILL at each row, and the turn is committed once."""

import os
import time
from datetime import timedelta

import pytest

from bub_redis.settings import Settings
from bub_redis.storage.keys import QueueKeys
from bub_redis.testing import wait_until
from bub_redis.turns import Turn, TurnClient
from tests.redis.audit import committed_turns
from tests.redis.frames import shown
from tests.redis.workers import kill, start_worker, worker_processes

AGENT = "tests.redis.agents:agent"
SOON = timedelta(seconds=20)

BEFORE_THE_COMMIT = ["after-start", "after-lock", "after-fork", "during-text", "during-tool_call", "before-merge"]
AFTER_THE_COMMIT = ["after-merge", "after-finish"]


@pytest.mark.parametrize("point", BEFORE_THE_COMMIT + AFTER_THE_COMMIT)
async def test_a_turn_is_committed_once_whatever_the_moment_of_death(
    client: TurnClient, settings: Settings, point: str
) -> None:
    prompts = {"m1": "order 7", "m2": "hello"}
    turns = [await client.enqueue("s", prompt, turn_id=turn_id) for turn_id, prompt in prompts.items()]
    dying = start_worker(settings, AGENT, BUB_FAULTS=point)
    await wait_until(lambda: dying.poll() is not None, f"the worker to die {point}", timeout_s=20)
    assert dying.returncode == -9
    with worker_processes(settings, AGENT):
        results = [await client.result(turn, timeout=SOON) for turn in turns]
    assert [result.status for result in results] == ["completed", "completed"]
    assert await committed_turns(client.store, "s", prompts) == ["m1", "m2"]
    receipt = results[0].receipt
    assert receipt is not None
    assert receipt.attempt == (1 if point in AFTER_THE_COMMIT else 2)


async def test_a_killed_workers_turn_is_committed_by_the_other_one(client: TurnClient, settings: Settings) -> None:
    """kill -9 in the middle of the text: followers see `restarted`, the tape sees one turn."""
    turn = await client.enqueue("s", "slowly one two three four five six seven eight", turn_id="m1")
    with worker_processes(settings, AGENT, count=2) as processes:
        kinds: list[str] = []
        killed_at = restarted_at = 0.0
        async for frame in client.follow(turn):
            kinds.append(frame.type)
            if frame.type == "text" and not killed_at:
                pid = await pid_of_runner(client, settings, turn)
                kill(next(process for process in processes if process.pid == pid))
                killed_at = time.monotonic()
            if frame.type == "restarted":
                restarted_at = time.monotonic()
    assert kinds.count("restarted") == 1
    assert kinds[-1] == "finished"
    # Lease, one beat to be sure, and the reconciler's look: design.md, section 4.
    assert restarted_at - killed_at < settings.lease_s + settings.beat_s + settings.reconcile_s + 1.5
    assert await committed_turns(client.store, "s", {"m1": "slowly one two three four five six seven eight"}) == ["m1"]


async def test_a_turn_in_commit_order_survives_a_stopped_worker(client: TurnClient, settings: Settings) -> None:
    """SIGSTOP longer than the lease, then SIGCONT: what the sleeper commits is refused by the fence (case 183)."""
    turn = await client.enqueue("s", "slowly one two three four five", turn_id="m1")
    sleeper = start_worker(settings, AGENT)
    try:
        await shown(client, turn, "text")
        os.kill(sleeper.pid, 19)
        with worker_processes(settings, AGENT):
            result = await client.result(turn, timeout=SOON)
            os.kill(sleeper.pid, 18)
            after = await client.enqueue("s", "hello", turn_id="m2")
            await client.result(after, timeout=SOON)
    finally:
        kill(sleeper)
    assert result.receipt is not None and result.receipt.attempt == 2
    prompts = {"m1": "slowly one two three four five", "m2": "hello"}
    assert await committed_turns(client.store, "s", prompts) == ["m1", "m2"]


async def pid_of_runner(client: TurnClient, settings: Settings, turn: Turn) -> int:
    """The process that runs the turn now, by the heartbeat of its worker."""
    standing = await client.queue.standing(turn)
    assert standing is not None
    key = QueueKeys(settings.namespace).worker(str(standing.worker))
    return int(await client.server.commands.execute_command("HGET", key, "pid"))
