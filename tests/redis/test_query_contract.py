"""What a query means: the same on every store, and in a fork wherever the tape is cut into parent and overlay."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bub_redis.errors import InvalidInput, NotFound
from bub_redis.storage import RedisTapeStore
from bub_redis.tape import AnchorSummary, InMemoryTapeStore, Tape, TapeEntry, TapeInfo, TapeQuery, adapted
from bub_redis.tape.query import answer, answer_newest_first
from bub_redis.testing import EmbeddedServer
from tests.redis.conftest import AnyStore

Ask = Callable[[TapeQuery], TapeQuery]


def on(day: int, entry: TapeEntry, time: str = "12:00:00") -> TapeEntry:
    return replace(entry, date=f"2026-01-{day:02}T{time}+00:00")


def said(day: int, text: str, **meta: Any) -> TapeEntry:
    return on(day, TapeEntry.message({"role": "user", "content": text}, **meta))


TAPE = [
    said(1, "Hello timeout"),  # 1
    on(1, TapeEntry.anchor("p", {"step": 1})),  # 2
    said(1, "项目配置"),  # 3
    on(2, TapeEntry.event("run", {"usage": {"total_tokens": 12, "input_tokens": 10, "cached_tokens": 5}})),  # 4
    on(2, TapeEntry.anchor("q")),  # 5
    said(2, "caf\u00e9 au lait", run_id="hello"),  # 6
    on(2, TapeEntry.anchor("p", {"step": 2})),  # 7
    on(3, TapeEntry.event("hello", {"text": "hello"}, context=False)),  # 8
    said(3, "Stra\u00dfe"),  # 9
    on(3, TapeEntry.tool_result([{"timeout": "hello"}], ["c1"])),  # 10
    on(3, TapeEntry.anchor("q")),  # 11
    said(4, "Hello timeout"),  # 12
    on(4, TapeEntry.anchor("")),  # 13
    on(4, TapeEntry(0, "x.custom", {"text": "hello"})),  # 14
    replace(said(5, "undated"), date="one day"),  # 15
]

ANSWERS: list[tuple[str, Ask, list[int]]] = [
    ("nothing asked", lambda q: q, list(range(1, 16))),
    ("after the last anchor", lambda q: q.last_anchor(), [14, 15]),
    ("after the latest of a name", lambda q: q.after_anchor("p"), [8, 9, 10, 11, 12, 13, 14, 15]),
    ("after the empty name", lambda q: q.after_anchor(""), [14, 15]),
    ("between two anchors", lambda q: q.between_anchors("p", "q"), [8, 9, 10]),
    ("from the latest start with a later end", lambda q: q.between_anchors("q", "p"), [6]),
    ("between two of one name", lambda q: q.between_anchors("q", "q"), [6, 7, 8, 9, 10]),
    ("between comes before after", lambda q: q.between_anchors("p", "q").last_anchor(), [8, 9, 10]),
    ("up to the first later end", lambda q: q.between_anchors("q", ""), [12]),
    ("a day", lambda q: q.between_dates("2026-01-02", "2026-01-02"), [4, 5, 6, 7]),
    ("with a time", lambda q: q.between_dates("2026-01-03T12:00:00", "2026-01-04"), [8, 9, 10, 11, 12, 13, 14]),
    ("with an offset", lambda q: q.between_dates("2026-01-02T13:00+01:00", "2026-01-02T14:00+02:00"), [4, 5, 6, 7]),
    ("no day", lambda q: q.between_dates("2027-01-01", "2027-12-31"), []),
    ("a text in any case", lambda q: q.query("HELLO"), [1, 10, 12]),
    ("a text of other letters", lambda q: q.query("配置"), [3]),
    ("a text with its accent decomposed", lambda q: q.query("CAFE\u0301"), [6]),
    ("a text in folded form", lambda q: q.query("strasse"), [9]),
    ("a key", lambda q: q.query("content"), []),
    ("a role", lambda q: q.query("user"), []),
    ("a key of a result", lambda q: q.query("timeout"), [1, 12]),
    ("one letter short", lambda q: q.query("timeouts"), []),
    ("a blank text", lambda q: q.query(" ").limit(2), [1, 2]),
    ("kinds", lambda q: q.kinds("event", "x.custom"), [4, 8, 14]),
    ("a text in a kind that is not searched", lambda q: q.kinds("event").query("hello"), []),
    ("a limit", lambda q: q.kinds("message").limit(2), [1, 3]),
    ("a limit of nothing", lambda q: q.limit(0), []),
    ("all at once", lambda q: q.after_anchor("p").between_dates("2026-01-03", "2026-01-04").query("hello"), [10, 12]),
    ("and limited", lambda q: q.between_anchors("p", "").kinds("message", "anchor").limit(2), [9, 11]),
]


@asynccontextmanager
async def cut(store: AnyStore, name: str, entries: Sequence[TapeEntry], at: int | None) -> AsyncIterator[Tape]:
    """A tape that holds `entries`: by itself, or as a fork that was opened after the first `at` of them."""
    tape = Tape(name, store)
    await tape.append(*entries[:at])
    if at is None:
        yield tape
        return
    async with tape.fork_tape(merge_back=False) as fork:
        # What others append now is not for this fork to see.
        await tape.append(TapeEntry.anchor("p"), TapeEntry.anchor("q"), said(2, "hello from elsewhere"))
        await fork.append(*entries[at:])
        yield fork


@pytest.mark.parametrize("at", [None, 15, 0, 4, 8], ids=lambda at: "tape" if at is None else f"fork at {at}")
async def test_every_query_has_one_answer(store: AnyStore, at: int | None) -> None:
    """Cases 8, 28, 33, 36, 54, 64, 82, 83, 84, 85, 87 and 115."""
    async with cut(store, "t", TAPE, at) as tape:
        for what, ask, expected in ANSWERS:
            assert [entry.id for entry in await ask(tape.query()).all()] == expected, what


MISSING: list[Ask] = [
    lambda q: q.after_anchor("nobody"),
    lambda q: q.between_anchors("", "p"),
    lambda q: q.between_anchors("p", "nobody"),
    lambda q: q.between_anchors("nobody", "p").limit(0),
]


@pytest.mark.parametrize("at", [None, 15, 0, 8], ids=lambda at: "tape" if at is None else f"fork at {at}")
async def test_a_missing_anchor_is_not_found_wherever_it_is_missed(store: AnyStore, at: int | None) -> None:
    """Cases 24, 62 and 83."""
    async with cut(store, "t", TAPE, at) as tape:
        for ask in MISSING:
            with pytest.raises(NotFound, match="'t' has no anchor"):
                await ask(tape.query()).all()


@pytest.mark.parametrize(
    "bounds", [("yesterday", "2026-01-01"), ("2026-01-01", "2026-13-01"), ("2026-01-02", "2026-01-01")]
)
async def test_a_period_that_is_none_is_refused(store: AnyStore, bounds: tuple[str, str]) -> None:
    with pytest.raises(InvalidInput):
        Tape("t", store).query().between_dates(*bounds)
    with pytest.raises(InvalidInput):
        await replace(Tape("t", store).query(), _between_dates=bounds).all()


@pytest.mark.parametrize("at", [None, 15, 0, 8], ids=lambda at: "tape" if at is None else f"fork at {at}")
async def test_a_search_gives_the_newest_first_and_each_payload_once(store: AnyStore, at: int | None) -> None:
    """Cases 8, 35 and 46: one list, so the number told is the number shown."""
    async with cut(store, "t", TAPE, at) as tape:
        assert [entry.id for entry in await tape.search("hello")] == [12, 10]
        assert [entry.id for entry in await tape.search("hello", limit=1)] == [12]
        assert [entry.id for entry in await tape.search(tape.query().between_anchors("p", "q").query("e"))] == [10, 9]
        assert [entry.id for entry in await tape.search(tape.query().kinds("anchor").limit(2))] == [13, 11]
        assert await tape.search(" ") == []


@pytest.mark.parametrize("at", [None, 15, 0, 8], ids=lambda at: "tape" if at is None else f"fork at {at}")
async def test_a_tape_in_numbers(store: AnyStore, at: int | None) -> None:
    """Cases 17, 41 and 87: the last usage counts wherever it stands, and an anchor without a name does not."""
    async with cut(store, "t", [*TAPE, TapeEntry(0, "anchor", {})], at) as tape:
        assert await tape.info() == TapeInfo("t", 16, 5, "", 3, 12, 0.5)
        assert await tape.anchors(2) == [AnchorSummary("q", {}), AnchorSummary("", {})]
        assert [anchor.state for anchor in await tape.anchors() if anchor.name == "p"] == [{"step": 1}, {"step": 2}]
        assert await tape.anchors(0) == []
        usage = await tape.last_usage()
        assert usage is not None and usage.id == 4


async def test_an_unknown_tape_in_numbers(store: AnyStore) -> None:
    tape = Tape("nobody", store)
    assert await tape.info() == TapeInfo("nobody", 0, 0, None, 0, None, None)
    assert await tape.anchors() == []
    assert await tape.search("x") == []


# Whatever the entries, the cut and the query


NAMES = st.sampled_from(["a", "b", ""])
DAYS = st.integers(1, 4)
ENTRIES = st.lists(
    st.one_of(
        st.builds(lambda day, name: on(day, TapeEntry.anchor(name)), DAYS, NAMES),
        st.builds(said, DAYS, st.sampled_from(["x", "xy", "Y", "\u00e9"])),
        st.builds(lambda day: on(day, TapeEntry.event("run", {"usage": {"total_tokens": day}})), DAYS),
        st.just(TapeEntry(0, "anchor", {"name": 7})),
    ),
    max_size=14,
)


@st.composite
def questions(draw: st.DrawFn) -> Ask:
    """Any combination of what can be asked."""
    steps: list[Ask] = []
    if draw(st.booleans()):
        names = draw(NAMES), draw(NAMES)
        anchors: list[Ask] = [
            lambda q: q.last_anchor(),
            lambda q: q.after_anchor(names[0]),
            lambda q: q.between_anchors(*names),
        ]
        steps.append(draw(st.sampled_from(anchors)))
    if draw(st.booleans()):
        days = sorted([draw(DAYS), draw(DAYS)])
        steps.append(lambda q: q.between_dates(*(f"2026-01-{day:02}" for day in days)))
    if draw(st.booleans()):
        text = draw(st.sampled_from(["X", "y", "e\u0301"]))
        steps.append(lambda q: q.query(text))
    if draw(st.booleans()):
        kinds = draw(st.sets(st.sampled_from(["message", "anchor", "event"])))
        steps.append(lambda q: q.kinds(*kinds))
    if draw(st.booleans()):
        limit = draw(st.integers(0, 5))
        steps.append(lambda q: q.limit(limit))

    def ask(query: TapeQuery) -> TapeQuery:
        for step in steps:
            query = step(query)
        return query

    return ask


async def same_as_one_tape(store: AnyStore, name: str, entries: list[TapeEntry], at: int, asks: list[Ask]) -> None:
    """A fork of the first `at` entries answers as the pure function does from all of them."""
    whole = [TapeEntry.decode(number, entry.encode()) for number, entry in enumerate(entries, start=1)]
    alone = InMemoryTapeStore()
    await alone.append("t", *entries)
    async with cut(store, name, entries, at) as fork:
        assert replace(await fork.info(), name="t") == await Tape("t", alone).info()
        for ask in asks:
            query = ask(fork.query())
            try:
                expected = answer(query, whole)
            except NotFound:
                with pytest.raises(NotFound):
                    await query.all()
                continue
            assert await query.all() == expected
            newest = [entry async for entry in adapted(fork.store).newest_first(query)]
            assert newest == list(answer_newest_first(query, whole))


@given(ENTRIES, st.data(), st.lists(questions(), min_size=4, max_size=8))
@settings(max_examples=150, deadline=None)
def test_a_fork_answers_as_one_tape(entries: list[TapeEntry], data: st.DataObject, asks: list[Ask]) -> None:
    at = data.draw(st.integers(0, len(entries)))
    asyncio.run(same_as_one_tape(InMemoryTapeStore(), "t", entries, at, asks))


@given(ENTRIES, st.data(), st.lists(questions(), min_size=8, max_size=16))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_fork_on_a_server_answers_as_one_tape(
    server: EmbeddedServer, namespace: str, entries: list[TapeEntry], data: st.DataObject, asks: list[Ask]
) -> None:
    at = data.draw(st.integers(0, len(entries)))

    async def check() -> None:
        async with RedisTapeStore.from_url(server.url, namespace=namespace) as store:
            number = len(await store.list_tapes())
            await same_as_one_tape(store, f"tape {number}", entries, at, asks)

    asyncio.run(check())
