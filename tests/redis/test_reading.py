"""Reading a tape on a server: how many round trips it takes, in what pieces it comes, and what spoils nothing."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection
from structlog.testing import capture_logs

from bub_redis.errors import Conflict, TapeBlocked
from bub_redis.storage import RedisTapeStore, reader
from bub_redis.storage.heads import Page
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape import Tape, TapeEntry
from tests.entries import say


async def tape_of(store: RedisTapeStore, name: str, length: int) -> Tape:
    """A tape of that many entries; the last of many anchors named `p` stands three entries before its end."""
    tape = Tape(name, store)
    usage = TapeEntry.event("run", {"usage": {"total_tokens": 7}})
    entries = [TapeEntry.anchor("p"), usage, *(say(str(number)) for number in range(8))]
    for _ in range(length // len(entries)):
        await tape.append(*entries)
    await tape.append(TapeEntry.anchor("q"), say("a"), TapeEntry.anchor("p"), say("b"), say("c"))
    return tape


async def settled(store: RedisTapeStore) -> None:
    """Wait for what the store notes beside an append."""
    await store.settle()


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was sent to a server so far, one item for each time that something was."""
    sent: list[Any] = []
    send = AbstractConnection.send_packed_command

    async def counted(self: AbstractConnection, command: Any, *args: Any, **kwargs: Any) -> None:
        sent.append(command)
        await send(self, command, *args, **kwargs)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", counted)
    return sent


CHEAP: dict[str, tuple[Callable[[Tape], Coroutine[Any, Any, Any]], int]] = {
    "last anchor": (lambda tape: tape.query().last_anchor().all(), 3),
    "named anchor": (lambda tape: tape.query().after_anchor("p").all(), 3),
    "between anchors": (lambda tape: tape.query().between_anchors("q", "p").all(), 3),
    "first entries": (lambda tape: tape.query().limit(5).all(), 2),
    "info": (lambda tape: tape.info(), 3),
    "anchors": (lambda tape: tape.anchors(), 3),
    "last usage": (lambda tape: tape.last_usage(), 3),
    "bootstrap": (lambda tape: tape.ensure_bootstrap_anchor(), 1),
    "newest hit": (lambda tape: tape.search("c", limit=1), 2),
}


@pytest.mark.parametrize("what", CHEAP)
async def test_round_trips_do_not_grow_with_the_tape(redis_store: RedisTapeStore, trips: list[Any], what: str) -> None:
    ask, most = CHEAP[what]
    counts = []
    for length in (20, 3000):
        tape = await tape_of(redis_store, f"{length}", length)
        await ask(tape)  # the scripts are known to the server from here on
        await settled(redis_store)
        trips.clear()
        await ask(tape)
        counts.append(len(trips))
        await settled(redis_store)
    assert counts[0] == counts[1] <= most


async def test_an_anchor_is_found_behind_many_that_came_later(redis_store: RedisTapeStore) -> None:
    tape = Tape("t", redis_store)
    await tape.append(TapeEntry.anchor("p"), say("a"), TapeEntry.anchor("q"), say("b"))
    await tape.append(*(TapeEntry.anchor(f"other {number}") for number in range(1000)))
    assert len(await tape.query().after_anchor("p").all()) == 1003
    (between,) = await tape.query().between_anchors("p", "q").all()
    assert between.text == "a"


@pytest.mark.parametrize("name", ["two words", "line\nbreak", "\x00", "half \ud83d", "日本 %d.*"], ids=ascii)
async def test_anchors_may_have_any_name(redis_store: RedisTapeStore, name: str) -> None:
    """Case 64."""
    tape = Tape("t", redis_store)
    await tape.append(TapeEntry.anchor(name), say("a"), TapeEntry.anchor(name), say("b"))
    assert [entry.text for entry in await tape.query().after_anchor(name).all()] == ["b"]
    assert [entry.text for entry in await tape.query().between_anchors(name, name).all()] == ["a"]
    assert (await tape.info()).last_anchor == name


async def test_large_entries_come_in_small_pages(redis_store: RedisTapeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are bounded in entries and in bytes, from both ends."""
    tape = Tape("t", redis_store)
    for number in range(40):
        await tape.append(*(say(str(number)) for _ in range(10)), say(str(number) + "x" * 50_000))
    monkeypatch.setattr(reader, "_PAGE_BYTES", 200_000)
    pages = []
    read = reader.Reader._page

    async def measured(self: reader.Reader, *args: Any) -> Page:
        page = await read(self, *args)
        pages.append(sum(len(value) for _, fields in page for value in fields))
        return page

    monkeypatch.setattr(reader.Reader, "_page", measured)
    forwards = await tape.query().kinds("message").all()
    backwards = [entry async for entry in redis_store.newest_first(tape.query())]
    assert [entry.id for entry in forwards] == list(range(1, 441)) == [entry.id for entry in reversed(backwards)]
    assert len(pages) > 10
    assert max(pages[1:]) < 3 * 200_000


# What spoils nothing


async def spoil(store: RedisTapeStore, tape: str, stream_id: str, fields: dict[str, Any]) -> None:
    await store.server.commands.xadd(TapeKeys(store.namespace, tape).tape, fields, id=stream_id)  # type: ignore[arg-type]


OURS = {"kind": "message", "payload": '{"content":"x"}', "meta": "{}", "date": "2026-01-01"}
SPOILT = {
    "a hand's entry": {"hello": "world"},
    "no JSON": OURS | {"payload": "{"},
    "no object": OURS | {"payload": "[]"},
    "no UTF-8": OURS | {"kind": b"\xff"},
    "no UTF-8 in JSON": OURS | {"payload": b'{"content":"\xff"}'},
    "one field more": OURS | {"more": "1"},
}


@pytest.mark.parametrize("fields", SPOILT.values(), ids=SPOILT)
async def test_what_cannot_be_read_is_left_out_counted_and_told_once(
    redis_store: RedisTapeStore, fields: dict[str, Any]
) -> None:
    """Cases 187 and, for hands, docs/design.md section 3: reads go on, writes are refused."""
    tape = Tape("t", redis_store)
    await tape.append(say("a"), TapeEntry.anchor("p"), say("b"))
    (_, _, last) = await tape.query().all()
    head = await redis_store.head("t")
    ms = head.last_ms
    await spoil(redis_store, "t", f"{ms}-{last.id + 1}", fields)
    state = TapeKeys(redis_store.namespace, "t").state
    await redis_store.server.commands.execute_command("HSET", state, "last", last.id + 1)
    with capture_logs() as logs:
        for _ in range(2):
            assert [entry.text for entry in await tape.query().kinds("message").all()] == ["a", "b"]
        assert [entry.text for entry in await tape.search("b")] == ["b"]
        info = await tape.info()
    assert (info.entries, info.entries_since_last_anchor) == (3, 1)
    assert [log["event"] for log in logs] == ["tape.damaged"]
    assert redis_store.damage.count("t") == 1
    with pytest.raises(TapeBlocked):
        await tape.append(say("c"))


async def test_an_entry_added_by_hand_is_not_ours_even_with_our_fields(redis_store: RedisTapeStore) -> None:
    tape = Tape("t", redis_store)
    await tape.append(say("a"))
    key = TapeKeys(redis_store.namespace, "t")
    stream_id = await redis_store.server.commands.xadd(key.tape, OURS)  # type: ignore[arg-type]
    ms = stream_id.decode().partition("-")[0]
    await redis_store.server.commands.execute_command("HSET", key.state, "ms", ms)
    assert [entry.text for entry in await tape.query().all()] == ["a"]


async def test_numbers_with_a_gap_lose_nothing_behind_an_anchor(redis_store: RedisTapeStore) -> None:
    """Cases 41 and 86: the number was raised and nothing pushed, as a hand may do; counts go by position then."""
    tape = Tape("t", redis_store)
    await tape.append(say("a"), TapeEntry.anchor("p"), say("b"))
    await redis_store.server.commands.execute_command("HINCRBY", TapeKeys(redis_store.namespace, "t").state, "last", 5)
    await tape.append(say("c"))
    assert [(entry.id, entry.text) for entry in await tape.query().after_anchor("p").all()] == [(3, "b"), (9, "c")]
    info = await tape.info()
    assert (info.entries, info.entries_since_last_anchor) == (4, 2)


# One generation


@contextmanager
def reset_after_first_page(store: RedisTapeStore, tape: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Once, another client resets the tape and writes to it while it is being read."""
    read = reader.Reader._page

    async def interrupted(self: reader.Reader, *args: Any) -> Page:
        page = await read(self, *args)
        monkeypatch.setattr(reader.Reader, "_page", read)
        await store.reset(tape, [TapeEntry.anchor("session/start")])
        await store.append(tape, *(say("new") for _ in range(3)))
        return page

    monkeypatch.setattr(reader.Reader, "_page", interrupted)
    yield


async def test_a_slice_never_mixes_two_generations(
    redis_store: RedisTapeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases 74 and 141: a reader sees the reset and reads again."""
    tape = Tape("t", redis_store)
    await tape.append(*(say("old") for _ in range(300)))
    with reset_after_first_page(redis_store, "t", monkeypatch):
        entries = await tape.query().kinds("message").all()
    assert [entry.text for entry in entries] == ["new"] * 3


async def test_a_fork_is_told_of_a_reset_of_its_parent(
    redis_store: RedisTapeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = Tape("t", redis_store)
    await tape.append(*(say("old") for _ in range(300)))
    head = await redis_store.head("t")
    with reset_after_first_page(redis_store, "t", monkeypatch), pytest.raises(Conflict):
        await redis_store.fetch_until(tape.query(), head)
    for ask in (tape.query().last_anchor(), tape.query().after_anchor("p"), tape.query().between_anchors("p", "q")):
        with pytest.raises(Conflict):
            await redis_store.fetch_until(ask, head)
    with pytest.raises(Conflict):
        await redis_store.outline("t", 1, head)
