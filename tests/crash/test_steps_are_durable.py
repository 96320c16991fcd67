"""A retried turn goes on from its last finished step: what was paid or done is not paid or done again."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from bub_redis.settings import Settings
from bub_redis.tape import Tape, TapeEntry
from bub_redis.testing import wait_until
from bub_redis.turns import Turn, TurnClient
from tests.redis.audit import assert_no_half_pair, committed_turns
from tests.redis.frames import shown
from tests.redis.workers import kill, start_worker

AGENT = "tests.redis.agents:agent"
SOON = timedelta(seconds=20)


class Trace:
    """What models and tools did, whichever process they ran in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.clear()

    def clear(self) -> None:
        self._path.write_text("", encoding="utf-8")

    def of(self, word: str) -> list[str]:
        lines = [line.split() for line in self._path.read_text(encoding="utf-8").splitlines()]
        return [line[-1] for line in lines if line[0] == word]


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    monkeypatch.setenv("TEST_TRACE", str(tmp_path / "trace"))
    return Trace(tmp_path / "trace")


async def die_then_finish(client: TurnClient, settings: Settings, turn: Turn, point: str) -> list[str]:
    """Run the turn on a worker that dies at the point, then on another; the kinds of frames that followers saw."""
    dying = start_worker(settings, AGENT, BUB_FAULTS=point)
    await wait_until(lambda: dying.poll() is not None, f"the worker to die {point}", timeout_s=20)
    survivor = start_worker(settings, AGENT)
    try:
        return [frame.type async for frame in client.follow(turn)]
    finally:
        kill(survivor)


def shape(entries: list[TapeEntry]) -> list[str]:
    """What is on a tape, without ids, dates and durations."""
    return [f"{entry.kind} {entry.payload.get('name', entry.payload.get('role', ''))}".strip() for entry in entries]


@pytest.mark.parametrize(
    "point", ["after-response", "after-response@2", "after-call", "after-result", "during-tool_result"]
)
async def test_an_idempotent_tools_turn_replays_to_the_same_tape(
    client: TurnClient, settings: Settings, trace: Trace, point: str
) -> None:
    """Two model calls in all, and one run of the tool unless it died before its result was known."""
    undisturbed = await client.enqueue("undisturbed", "stock 7", turn_id="m1")
    await die_then_finish(client, settings, undisturbed, "after-finish")
    trace.clear()
    turn = await client.enqueue("disturbed", "stock 7", turn_id="m1")
    kinds = await die_then_finish(client, settings, turn, point)
    assert len(trace.of("model")) == 2
    assert len(trace.of("stock")) == 1
    assert kinds.count("restarted") == 1
    tapes = [await Tape(name, client.store).query().all() for name in ("undisturbed", "disturbed")]
    assert shape(tapes[0]) == shape(tapes[1])
    assert await committed_turns(client.store, "disturbed", {"m1": "stock 7"}) == ["m1"]


async def test_a_call_with_unknown_outcome_is_answered_as_interrupted(
    client: TurnClient, settings: Settings, trace: Trace
) -> None:
    """The tool did not say that it may be run again, so nobody runs it again."""
    turn = await client.enqueue("s", "order 7", turn_id="m1")
    await die_then_finish(client, settings, turn, "after-call")
    assert trace.of("lookup") == []
    entries = await Tape("s", client.store).query().all()
    assert_no_half_pair(entries)
    (result,) = [entry for entry in entries if entry.kind == "tool_result"]
    assert "interrupted" in str(result.payload["results"][0])
    assert (await client.result(turn, timeout=SOON)).status == "completed"


async def test_an_idempotent_call_runs_again_under_the_same_key(
    client: TurnClient, settings: Settings, trace: Trace
) -> None:
    turn = await client.enqueue("s", "stock 7", turn_id="m1")
    await die_then_finish(client, settings, turn, "before-result")
    keys = trace.of("stock")
    assert len(keys) == 2
    assert len(set(keys)) == 1


@pytest.mark.parametrize("point", ["after-result", "after-result@2"])
async def test_of_two_calls_only_the_unfinished_one_is_open(
    client: TurnClient, settings: Settings, trace: Trace, point: str
) -> None:
    turn = await client.enqueue("s", "both 7", turn_id="m1")
    await die_then_finish(client, settings, turn, point)
    assert (await client.result(turn, timeout=SOON)).status == "completed"
    entries = await Tape("s", client.store).query().all()
    assert_no_half_pair(entries)
    assert len(trace.of("lookup")) == 1
    assert len(trace.of("model")) == 2


async def test_a_journal_is_gone_after_the_commit(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "order 7", turn_id="m1")
    await die_then_finish(client, settings, turn, "after-result")
    left = [key async for key in client.server.commands.scan_iter(f"{settings.namespace}:*:journal:*")]
    assert left == []


async def test_a_drained_turn_goes_on_from_its_last_finished_step(
    client: TurnClient, settings: Settings, trace: Trace
) -> None:
    """SIGTERM in the second response: the first one and its tool are not repeated, and no trace of the stop is left."""
    turn = await client.enqueue("s", "report 7", turn_id="m1")
    leaving = start_worker(settings, AGENT)
    try:
        await shown(client, turn, "text")
        leaving.terminate()
        assert await asyncio.to_thread(leaving.wait, 10) == 0
    finally:
        kill(leaving)
    survivor = start_worker(settings, AGENT)
    try:
        assert (await client.result(turn, timeout=SOON)).status == "completed"
    finally:
        kill(survivor)
    assert len(trace.of("stock")) == 1
    assert len(trace.of("model")) == 3
    finishes = [e for e in await Tape("s", client.store).query().all() if e.payload.get("name") == "loop.finish"]
    assert [entry.payload["data"]["status"] for entry in finishes] == ["ok"]
