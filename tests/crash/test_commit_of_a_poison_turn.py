"""A turn that takes its worker down each time ends by a closing attempt; nobody else suffers for it."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from bub_redis.settings import Settings
from bub_redis.tape import Tape
from bub_redis.turns import TurnClient
from tests.redis.audit import committed_turns
from tests.redis.workers import kill, start_worker

AGENT = "tests.redis.agents:agent"


async def test_a_poison_turn_is_committed_as_failed_and_the_session_goes_on(
    client: TurnClient, settings: Settings
) -> None:
    """It dies three times in its tool; a neighbour that ran beside it each time is not failed with it."""
    poison = await client.enqueue("poisoned", "die now", turn_id="m1")
    after = await client.enqueue("poisoned", "hello", turn_id="m2")
    neighbour = await client.enqueue("neighbour", "wait 1", turn_id="m1")

    async def supervise() -> None:
        """Start the worker again whenever it dies, as an orchestrator does."""
        worker = start_worker(settings, AGENT)
        try:
            while True:
                await asyncio.to_thread(worker.wait)
                worker = start_worker(settings, AGENT)
        finally:
            kill(worker)

    supervisor = asyncio.create_task(supervise())
    try:
        results = [await client.result(turn, timeout=timedelta(seconds=40)) for turn in (poison, after, neighbour)]
    finally:
        supervisor.cancel()
        with suppress(asyncio.CancelledError):
            await supervisor
    assert [result.status for result in results] == ["failed", "completed", "completed"]
    assert "3 times" in (results[0].error or "")
    assert await committed_turns(client.store, "poisoned", {"m1": "die now", "m2": "hello"}) == ["m1", "m2"]
    errors = await Tape("poisoned", client.store).query().kinds("error").all()
    assert [entry.payload["kind"] for entry in errors] == ["crashed"]
    (dead,) = await client.dead()
    assert (dead.request.turn, dead.request.prompt) == (poison, "die now")
    retried = await client.retry(dead)
    assert retried == await client.retry(dead)
    assert retried.id == "m1~2"
