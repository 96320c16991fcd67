"""Stores with the four methods and no more: adapted, forked, and merged as well as they allow."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from bub_redis.errors import Conflict, InvalidInput, NotFound
from bub_redis.tape import InMemoryTapeStore, Receipt, Tape, TapeEntry, TapeQuery, TapeStore, adapted
from bub_redis.tape.adapter import AdaptedStore
from bub_redis.tape.fork import Fork
from bub_redis.tape.receipt import broken_receipts
from tests.entries import say, texts


@dataclass(frozen=True)
class TheirEntry:
    """An entry of another project's class."""

    id: int
    kind: str
    payload: dict[str, Any]
    meta: dict[str, Any] = field(default_factory=dict)
    date: str = "2026-01-01T00:00:00+00:00"


class TheirError(Exception):
    """An error of another project's class, told by its kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class TheirStore:
    """As a store that was written for Bub: blocking, one entry at a time, classes of its own."""

    def __init__(self) -> None:
        self.tapes: dict[str, list[TheirEntry]] = {}
        self.failing_on: str | None = None

    def list_tapes(self) -> list[str]:
        return sorted(self.tapes)

    def fetch_all(self, query: TapeQuery) -> Iterator[TheirEntry]:
        if query.tape == "down":
            raise ConnectionError("no answer")
        if query.tape == "missing":
            raise TheirError("not_found")
        return iter(self.tapes.get(query.tape, []))

    def append(self, tape: str, entry: TapeEntry) -> None:
        if self.failing_on is not None and entry.text == self.failing_on:
            raise OSError("disk full")
        entries = self.tapes.setdefault(tape, [])
        entries.append(TheirEntry(len(entries) + 1, entry.kind, dict(entry.payload), dict(entry.meta), entry.date))

    def reset(self, tape: str) -> None:
        self.tapes.pop(tape, None)


@pytest.fixture
def theirs() -> TheirStore:
    return TheirStore()


@pytest.fixture
def tape(theirs: TheirStore) -> Tape:
    return Tape("t", adapted(cast(TapeStore, theirs)))


def test_a_store_has_one_adapter_while_it_is_used(theirs: TheirStore) -> None:
    """All tapes of a store share their session locks."""
    first, second = Tape("a", cast(Any, theirs)), Tape("b", cast(Any, theirs))
    assert first.store is second.store
    assert Tape("c", cast(Any, TheirStore())).store is not first.store


def test_a_store_with_a_commit_needs_no_adapter() -> None:
    store = InMemoryTapeStore()
    assert adapted(store) is store


async def test_what_lacks_a_method_is_no_store() -> None:
    class Nearly:
        def append(self, tape: str, *entries: TapeEntry) -> list[TapeEntry]:
            return list(entries)

    with pytest.raises(InvalidInput, match="a Nearly is no tape store: it has no `list_tapes`"):
        adapted(cast(TapeStore, Nearly()))


async def test_their_entries_are_given_as_ours(tape: Tape, theirs: TheirStore) -> None:
    (appended,) = await tape.append(say("a"))
    (entry,) = await tape.query().all()
    assert appended == entry == replace(say("a"), id=1, date=appended.date)
    cast(dict[str, Any], entry.payload)["content"] = "changed"
    assert texts(await tape.query().all()) == ["a"]


async def test_what_they_stored_and_json_has_not_spoils_no_tape(tape: Tape, theirs: TheirStore) -> None:
    theirs.tapes["t"] = [TheirEntry(1, "event", {"name": "e", "data": {"cost": float("nan"), "at": TheirError}})]
    async with tape.fork_tape() as fork:
        await fork.append(say("a"))
    assert (await tape.query().all())[0].payload["data"]["cost"] is None


async def test_what_cannot_be_stored_never_reaches_the_store(tape: Tape, theirs: TheirStore) -> None:
    """Cases 69 and 70: the whole batch is refused."""
    with pytest.raises(InvalidInput):
        await tape.append(say("a"), TapeEntry.event("bad", {"value": float("nan")}))
    assert theirs.tapes == {}


async def test_their_errors_are_ours_by_kind_and_others_pass(tape: Tape) -> None:
    """Cases 24 and 92."""
    with pytest.raises(NotFound):
        await tape.scoped("missing").query().all()
    with pytest.raises(ConnectionError):
        await tape.scoped("down").query().all()
    with pytest.raises(ConnectionError):
        async with tape.scoped("down").fork_tape():
            raise AssertionError("never open")


async def test_a_fork_is_merged_in_order_with_a_receipt(tape: Tape) -> None:
    await tape.append(say("old"))
    for name in ("r1", "r2"):
        async with tape.fork_tape(run_id=name) as fork:
            await tape.append(say("beside"))
            await fork.append(say(name), say("done", "assistant"))
    entries = await tape.query().all()
    assert texts(entries) == ["old", "beside", "r1", "done", "beside", "r2", "done"]
    assert broken_receipts(entries) == []
    receipt = Receipt.from_entry(entries[-1], f"0-{entries[-1].id}")
    assert (receipt.turn, receipt.first, receipt.answer_entry, receipt.last) == ("r2", 7, 8, 9)


async def test_a_merge_goes_on_where_it_stopped(tape: Tape, theirs: TheirStore) -> None:
    """Case 94: once each, though the store cannot do all at once."""
    store = tape.store
    assert isinstance(store, AdaptedStore)
    async with store.session("t", "r", 1.0) as grant:
        fork = await Fork.open(store, grant)
        await fork.append("t", *(say(f"e{number}") for number in range(5)))
        theirs.failing_on = "e2"
        with pytest.raises(OSError, match="disk full"):
            await fork.merge("completed")
        theirs.failing_on = None
        first = await fork.merge("completed")
        assert await fork.merge("completed") == first
    assert texts(await tape.query().all()) == ["e0", "e1", "e2", "e3", "e4"]


@dataclass
class FullDisk:
    """Makes one append to the main tape fail, the n-th from now on, and each to a sidecar."""

    store: TheirStore
    at: int

    def __post_init__(self) -> None:
        self._append, self._left = self.store.append, self.at
        self.store.append = self.append  # type: ignore[method-assign]

    def append(self, tape: str, entry: TapeEntry) -> None:
        self._left -= tape == "t"
        if tape != "t" or self._left == 0:
            raise OSError("disk full")
        self._append(tape, entry)


@pytest.mark.parametrize("at", [1, 2, 3], ids=["the message", "the event", "the receipt"])
async def test_a_merge_that_goes_on_still_tells_of_the_sidecar_that_failed(
    tape: Tape, theirs: TheirStore, at: int
) -> None:
    """Case 94: wherever it stopped, the block is that of a merge that did not stop."""
    store = tape.store
    assert isinstance(store, AdaptedStore)
    async with store.session("t", "r", 1.0) as grant:
        fork = await Fork.open(store, grant, sidecars=["t__sidecar__notes"])
        await fork.append("t", say("a"))
        await fork.append("t__sidecar__notes", say("note"))
        FullDisk(theirs, at)
        with pytest.raises(OSError, match="disk full"):
            await fork.merge("completed")
        receipt = await fork.merge("completed")
    entries = await tape.query().all()
    assert [entry.payload.get("name") for entry in entries] == [None, "sidecar.merge", "turn.receipt"]
    assert (receipt.first, receipt.last, broken_receipts(entries)) == (1, 3, [])


@pytest.mark.parametrize("at", [2, 3], ids=["the message", "the receipt"])
async def test_a_merge_goes_on_also_where_it_has_reset_the_tape(tape: Tape, theirs: TheirStore, at: int) -> None:
    """Case 94: the reset is its own, and no reason to refuse it."""
    store = tape.store
    assert isinstance(store, AdaptedStore)
    await tape.append(say("old"))
    async with store.session("t", "r", 1.0) as grant:
        fork = await Fork.open(store, grant)
        await fork.reset("t", [TapeEntry.anchor("session/start")])
        await fork.append("t", say("new"))
        FullDisk(theirs, at)
        with pytest.raises(OSError, match="disk full"):
            await fork.merge("completed")
        await fork.merge("completed")
    entries = await tape.query().all()
    assert [entry.kind for entry in entries] == ["anchor", "message", "event"]
    assert broken_receipts(entries) == []


async def test_a_run_that_is_on_the_tape_is_not_merged_again_by_any_process(theirs: TheirStore) -> None:
    for _ in range(2):
        elsewhere = AdaptedStore(cast(TapeStore, theirs))  # as another process sees it
        async with Tape("t", elsewhere).fork_tape(run_id="r") as fork:
            await fork.append(say("once"))
    assert texts(await Tape("t", cast(Any, theirs)).query().all()) == ["once"]


async def test_a_cancelled_reset_leaves_no_empty_tape(
    tape: Tape, theirs: TheirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 171: the store empties and refills in two steps, and both are made."""
    await tape.append(say("old"))
    emptied, go_on = threading.Event(), threading.Event()
    reset = theirs.reset

    def slowly(name: str) -> None:
        reset(name)
        emptied.set()
        go_on.wait(10)

    monkeypatch.setattr(theirs, "reset", slowly)
    store = tape.store
    assert isinstance(store, AdaptedStore)
    task = asyncio.create_task(store.reset("t", [TapeEntry.anchor("session/start")]))
    await asyncio.to_thread(emptied.wait, 10)
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [entry.anchor_name for entry in await tape.query().all()] == ["session/start"]


async def test_a_receipt_that_came_from_elsewhere_refuses_the_merge(tape: Tape, theirs: TheirStore) -> None:
    """Case 174: another process merged meanwhile, and the chain must not fork."""
    elsewhere = Tape("t", AdaptedStore(cast(TapeStore, theirs)))
    with pytest.raises(Conflict, match="another receipt"):
        async with tape.fork_tape() as fork:
            await fork.append(say("late"))
            async with elsewhere.fork_tape() as other:
                await other.append(say("first"))
    assert texts(await tape.query().all()) == ["first"]
