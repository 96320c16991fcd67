"""What a turn knows beside its tape: it goes from attempt to attempt, whatever dies."""

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bub_redis.settings import Settings
from bub_redis.storage import RedisTapeStore
from bub_redis.storage.journal import Journal
from bub_redis.tape import TapeEntry
from bub_redis.tape.store import Grant
from bub_redis.testing import wait_until
from bub_redis.turns import TurnClient
from bub_redis.turns.durable import Note, TurnFork
from tests.redis.workers import kill, start_worker, worker_processes

AGENT = "tests.redis.handy_agent:agent"
SOON = timedelta(seconds=20)


async def worked_to_death(settings: Settings) -> None:
    worker = start_worker(settings, AGENT, BUB_FAULTS="after-result")
    try:
        await wait_until(lambda: worker.poll() is not None, "the worker to die", timeout_s=20)
    finally:
        kill(worker)


async def looked_at(
    client: TurnClient, settings: Settings, prompt: str, state: Mapping[str, Any], *, deaths: int = 1
) -> dict[str, Any]:
    """The state that a turn ends with, if workers die under it, each right after a tool had its result noted."""
    turn = await client.enqueue("s", f"{prompt} look", state=state)
    for _ in range(deaths):
        await worked_to_death(settings)
    with worker_processes(settings, AGENT):
        result = await client.result(turn, timeout=SOON)
    found: dict[str, Any] = json.loads(result.text or "")
    del found["session_id"]
    return found


async def test_what_changed_deep_in_the_state_is_known_to_the_next_attempt(
    client: TurnClient, settings: Settings
) -> None:
    assert await looked_at(client, settings, "buy", {"cart": []}) == {"cart": ["book"]}


async def test_what_was_taken_out_of_the_state_does_not_come_back(client: TurnClient, settings: Settings) -> None:
    assert await looked_at(client, settings, "redeem", {"coupon": "X"}) == {}


async def test_a_state_that_is_as_it_was_at_first_is_noted_too(client: TurnClient, settings: Settings) -> None:
    """Turned on in the first attempt and off in the second: the third does not find it on."""
    assert await looked_at(client, settings, "flip flip", {"on": False}, deaths=2) == {"on": False}


async def reopened(store: RedisTapeStore, dispatch: int) -> tuple[TurnFork, list[Note]]:
    """The fork of an attempt of turn `m1`, and the notes of the attempts before it."""
    granted = await store.lock.grant("s", "m1", dispatch=dispatch, secret=f"secret{dispatch}")
    assert isinstance(granted, Grant)
    fork = await TurnFork.open(store, granted, sidecars=["s__sidecar__spill"])
    return fork, await fork.replay(Journal(store.server, store.namespace, granted))


async def test_what_other_calls_do_while_the_tape_is_reset_is_in_the_journal(client: TurnClient) -> None:
    """A reset looks at its sidecars first, which takes a while."""
    fork, _ = await reopened(client.store, 1)

    async def another_call() -> None:
        fork.note("result", {"key": "k", "result": "the card was charged"})
        await fork.append("s", TapeEntry.event("charged"))

    await asyncio.gather(
        fork.reset("s", [TapeEntry.anchor("session/start")], sidecars=["s__sidecar__spill"]), another_call()
    )
    await fork.flush()
    later, notes = await reopened(client.store, 2)
    assert notes == [("result", {"key": "k", "result": "the card was charged"})]
    assert [entry.payload for entry in later.entries] == [entry.payload for entry in fork.entries]


async def test_a_worker_that_is_told_to_stop_waits_for_no_sync_tool(
    client: TurnClient, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn is another's at once, and so is the machine."""
    trace = tmp_path / "trace"
    monkeypatch.setenv("TEST_TRACE", str(trace))
    turn = await client.enqueue("s", "nap=30")
    worker = start_worker(settings, AGENT)
    try:
        await wait_until(trace.exists, "the tool to run", timeout_s=20)
        worker.terminate()
        assert await asyncio.to_thread(worker.wait, 8) == 0
    finally:
        kill(worker)
    standing = await client.queue.standing(turn)
    assert standing is not None and standing.status == "queued"
