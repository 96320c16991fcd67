"""The worker as a process: outages, blocked loops, drain."""

import asyncio
import signal
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bub_redis.settings import Settings, load_settings
from bub_redis.storage.keys import QueueKeys
from bub_redis.tasks import ended
from bub_redis.testing import EmbeddedServer, wait_until
from bub_redis.turns import TurnClient
from tests.redis.audit import committed_turns
from tests.redis.frames import shown
from tests.redis.workers import kill, start_worker, worker_processes
from worker.reconcile import Reconciler
from worker.settings import arq_options

AGENT = "tests.redis.agents:agent"
SOON = timedelta(seconds=20)


@pytest.fixture
def own_server(tmp_path: Path) -> EmbeddedServer:
    return EmbeddedServer(data_dir=tmp_path / "data")


def short(server: EmbeddedServer) -> Settings:
    return load_settings(
        redis_url=server.url, lease_s=0.9, beat_s=0.2, reconcile_s=0.05, waiting_grace_s=0.5, drain_s=0.0
    )


async def test_sigterm_hands_running_turns_back_uncharged(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "slowly one two three four five six", turn_id="m1")
    leaving = start_worker(settings, AGENT)
    try:
        await shown(client, turn, "text")
        leaving.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(leaving.wait, 10) == 0
        standing = await client.queue.standing(turn)
        assert standing is not None and (standing.status, standing.attempt) == ("queued", 2)
        with worker_processes(settings, AGENT):
            result = await client.result(turn, timeout=SOON)
    finally:
        kill(leaving)
    assert result.receipt is not None and result.receipt.attempt == 2
    assert await committed_turns(client.store, "s", {"m1": "slowly one two three four five six"}) == ["m1"]


async def test_an_idle_worker_leaves_at_once(settings: Settings, client: TurnClient) -> None:
    worker = start_worker(settings, AGENT)
    try:

        async def ready() -> bool:
            return bool([key async for key in client.server.commands.scan_iter(f"{settings.namespace}:worker:*")])

        await wait_until(ready, "the worker's heartbeat")
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 5) == 0
        assert not await ready()
    finally:
        kill(worker)


async def test_a_worker_outlives_a_killed_server_idle(own_server: EmbeddedServer) -> None:
    with own_server:
        settings = short(own_server)
        with worker_processes(settings, AGENT) as (worker,):
            async with TurnClient(settings) as client:
                await client.result(await client.enqueue("s", "one", turn_id="m1"), timeout=SOON)
                own_server.kill()
                own_server.restart()
                await client.result(await client.enqueue("s", "two", turn_id="m2"), timeout=SOON)
                assert await committed_turns(client.store, "s", {"m1": "one", "m2": "two"}) == ["m1", "m2"]
            assert worker.poll() is None


async def test_a_turn_outlives_a_killed_server(own_server: EmbeddedServer) -> None:
    """Killed in the middle of the text and back: committed once, and not charged with a crash."""
    with own_server:
        settings = short(own_server)
        prompt = "slowly one two three four five six seven eight nine ten"
        with worker_processes(settings, AGENT):
            async with TurnClient(settings) as client:
                turn = await client.enqueue("s", prompt, turn_id="m1")
                await shown(client, turn, "text")
                own_server.kill()
                own_server.restart()
                assert (await client.result(turn, timeout=SOON)).status == "completed"
                assert await committed_turns(client.store, "s", {"m1": prompt}) == ["m1"]


def test_arq_cuts_off_no_turn_that_waits_for_its_server(settings: Settings) -> None:
    """Over its limit and an outage of a week, say: it is handed back uncharged when the server answers."""
    assert arq_options(settings)["job_timeout"] > settings.turn_limit_s + timedelta(days=7).total_seconds()


def test_a_worker_that_cannot_start_says_why(settings: Settings) -> None:
    nowhere = load_settings(redis_url="redis://127.0.0.1:1/0", namespace=settings.namespace)
    worker = start_worker(nowhere, AGENT)
    assert worker.wait(20) == 5


@pytest.mark.parametrize(
    "agent", ["nowhere:agent", "tests.redis.agents:nothing", "tests.redis.agents:lookup", "nocolon"]
)
def test_nothing_at_module_attribute_is_a_usage_error(settings: Settings, agent: str) -> None:
    worker = start_worker(settings, agent)
    try:
        assert worker.wait(20) == 2
    except subprocess.TimeoutExpired:
        kill(worker)
        raise


async def test_what_was_reconciled_is_logged_by_the_names_of_other_lines(settings: Settings, tmp_path: Path) -> None:
    there = settings.model_copy(update={"workspace": tmp_path})
    async with TurnClient(there) as client:
        turn = await client.enqueue("customer/42", "hi", turn_id="m 1")
        with capture_logs() as logs:
            reconciling = asyncio.create_task(Reconciler(client.queue, there, "w1", lambda: 0).run())
            await wait_until(lambda: logs, "a turn that waits for a worker to be looked at", timeout_s=20)
            await ended(reconciling)
    names = {"session": turn.session, "turn": turn.id, "attempt": 1, "worker": "w1"}
    assert logs[0] == {"event": "turn.reconciled", "log_level": "info", "what": "rearmed", **names}


async def test_of_a_turn_whose_hash_is_gone_the_full_id_tells(settings: Settings) -> None:
    async with TurnClient(settings) as client:
        turn = await client.enqueue("customer/42", "hi", turn_id="m 1")
        await client.server.commands.delete(QueueKeys(settings.namespace).turn(turn.full_id))
        with capture_logs() as logs:
            reconciling = asyncio.create_task(Reconciler(client.queue, settings, "w1", lambda: 0).run())
            await wait_until(lambda: logs, "the turn to be given up", timeout_s=20)
            await ended(reconciling)
    assert (logs[0]["what"], logs[0]["session"], logs[0]["turn"]) == ("gone", "customer/42", "m 1")
