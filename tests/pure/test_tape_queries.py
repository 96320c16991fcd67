"""Queries: the anchor first, then the kinds, then the limit, with one meaning in every store."""

from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from bub_redis.errors import ErrorKind, InvalidInput, NotFound
from bub_redis.tape import InMemoryTapeStore, Tape, TapeEntry


async def tape_of(*words: str) -> Tape:
    """A tape: `#name` is an anchor of that name, other words are messages."""
    tape = Tape("t", InMemoryTapeStore())
    for word in words:
        anchor = word.startswith("#")
        await tape.append(TapeEntry.anchor(word[1:]) if anchor else TapeEntry.message({"content": word}))
    return tape


def words(entries: list[TapeEntry]) -> list[str]:
    return [entry.payload.get("content") or f"#{entry.payload.get('name')}" for entry in entries]


async def test_a_query_without_conditions_gives_the_tape_in_order() -> None:
    tape = await tape_of("a", "#p", "b")
    assert words(await tape.query().all()) == ["a", "#p", "b"]
    assert [entry.id for entry in await tape.query().all()] == [1, 2, 3]


async def test_the_last_anchor_is_the_latest_of_any_name_and_not_in_the_answer() -> None:
    tape = await tape_of("a", "#p", "b", "#q", "c")
    assert words(await tape.query().last_anchor().all()) == ["c"]


async def test_an_anchor_that_came_twice_counts_from_its_latest() -> None:  # case 64
    tape = await tape_of("#p", "a", "#p", "b", "#q", "c")
    assert words(await tape.query().after_anchor("p").all()) == ["b", "#q", "c"]


async def test_an_anchor_may_have_the_empty_name() -> None:  # case 64
    tape = await tape_of("a", "#", "b")
    assert words(await tape.query().after_anchor("").all()) == ["b"]
    assert words(await tape.query().last_anchor().all()) == ["b"]


async def test_an_anchor_entry_without_a_name_is_none() -> None:  # case 87
    tape = await tape_of("#p", "a")
    await tape.append(TapeEntry(0, "anchor", {"state": {}}), TapeEntry(0, "anchor", {"name": 7}))
    assert [entry.id for entry in await tape.query().last_anchor().all()] == [2, 3, 4]


@pytest.mark.parametrize("name", ["nobody", "P"])
async def test_a_missing_anchor_is_an_error_that_names_it(name: str) -> None:  # case 62
    tape = await tape_of("#p", "a")
    with pytest.raises(NotFound, match=f"'t' has no anchor '{name}'"):
        await tape.query().after_anchor(name).all()


async def test_a_tape_without_anchors_has_no_last_one() -> None:  # case 82
    tape = await tape_of("a")
    with pytest.raises(NotFound, match="'t' has no anchor"):
        await tape.query().last_anchor().all()


async def test_an_unknown_tape_is_empty_and_has_no_anchor() -> None:
    tape = await tape_of()
    assert await tape.query().all() == []
    with pytest.raises(NotFound):
        await tape.query().last_anchor().all()


async def test_the_anchor_is_found_before_kinds_are_filtered() -> None:  # case 54
    tape = await tape_of("before", "#p", "after")
    await tape.append_event("noise")
    assert words(await tape.query().last_anchor().kinds("message").all()) == ["after"]
    assert words(await tape.query().kinds("message").last_anchor().all()) == ["after"]


async def test_the_limit_cuts_last() -> None:  # case 54
    tape = await tape_of("a", "#p", "b", "c", "d")
    assert words(await tape.query().limit(2).last_anchor().kinds("message").all()) == ["b", "c"]


async def test_a_limit_of_nothing_gives_nothing() -> None:
    tape = await tape_of("a")
    assert await tape.query().limit(0).all() == []
    with pytest.raises(InvalidInput, match="0 or more"):
        tape.query().limit(-1)


async def test_the_last_call_about_the_anchor_counts() -> None:
    tape = await tape_of("#p", "a", "#q", "b")
    assert words(await tape.query().after_anchor("p").last_anchor().all()) == ["b"]
    assert words(await tape.query().last_anchor().after_anchor("p").all()) == ["a", "#q", "b"]


async def test_a_query_is_not_changed_by_asking_for_more() -> None:
    tape = await tape_of("a", "b")
    query = tape.query()
    query.limit(1).kinds("event")
    assert words(await query.all()) == ["a", "b"]


async def test_the_bootstrap_anchor_is_written_once() -> None:  # case 100
    tape = await tape_of()
    await tape.ensure_bootstrap_anchor()
    await tape.ensure_bootstrap_anchor()
    anchor, event = await tape.query().all()
    assert anchor.payload == {"name": "session/start", "state": {"owner": "human"}}
    assert event.payload == {"name": "handoff", "data": {"name": "session/start", "state": {"owner": "human"}}}


async def test_a_tape_that_has_an_anchor_needs_no_bootstrap() -> None:
    tape = await tape_of("#p")
    await tape.ensure_bootstrap_anchor()
    assert words(await tape.query().all()) == ["#p"]


async def test_a_handoff_is_an_anchor_and_an_event() -> None:  # case 101
    tape = await tape_of("a")
    anchor, event = await tape.handoff(name="phase/two", state={"done": ["one"]})
    assert (anchor.kind, anchor.payload) == ("anchor", {"name": "phase/two", "state": {"done": ["one"]}})
    assert event.payload == {"name": "handoff", "data": {"name": "phase/two", "state": {"done": ["one"]}}}
    assert [entry.id for entry in (anchor, event)] == [2, 3]


# Between anchors


async def test_a_slice_between_anchors_leaves_both_out() -> None:  # case 64
    tape = await tape_of("a", "#p", "b", "c", "#q", "d")
    assert words(await tape.query().between_anchors("p", "q").all()) == ["b", "c"]


async def test_it_starts_at_the_latest_start_that_has_a_later_end() -> None:  # case 83
    tape = await tape_of("#p", "a", "#p", "b", "#q", "c", "#q", "d", "#p", "e")
    assert words(await tape.query().between_anchors("p", "q").all()) == ["b"]


async def test_both_anchors_may_have_one_name() -> None:
    tape = await tape_of("#p", "a", "#p", "b", "#p", "c")
    assert words(await tape.query().between_anchors("p", "p").all()) == ["b"]


async def test_other_anchors_may_stand_between() -> None:
    tape = await tape_of("#p", "a", "#x", "b", "#q")
    assert words(await tape.query().between_anchors("p", "q").kinds("message").all()) == ["a", "b"]


@pytest.mark.parametrize("names", [("q", "p"), ("p", "nobody"), ("nobody", "q")])
async def test_an_end_that_does_not_follow_its_start_is_missing(names: tuple[str, str]) -> None:
    tape = await tape_of("#p", "a", "#q")
    with pytest.raises(NotFound, match=f"no anchor '{names[0]}' with an anchor '{names[1]}' behind it"):
        await tape.query().between_anchors(*names).all()


async def test_between_counts_before_after() -> None:
    tape = await tape_of("#p", "a", "#q", "b")
    assert words(await tape.query().between_anchors("p", "q").last_anchor().all()) == ["a"]
    assert words(await tape.query().last_anchor().between_anchors("p", "q").all()) == ["a"]


# Between dates

DAYS = {
    "eve": "2026-01-01T23:59:59.999999+00:00",
    "midnight": "2026-01-02T00:00:00+00:00",
    "noon in Tokyo": "2026-01-02T12:00:00+09:00",
    "late": "2026-01-02T23:59:59.999999Z",
    "next": "2026-01-03T00:00:00",
}


async def dated() -> Tape:
    """One message for each of DAYS, and two whose dates cannot be read."""
    tape = Tape("t", InMemoryTapeStore())
    for word, moment in {**DAYS, "never": "", "soon": "soon"}.items():
        await tape.append(replace(TapeEntry.message({"content": word}), date=moment))
    return tape


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("2026-01-02", "2026-01-02", ["midnight", "noon in Tokyo", "late"]),
        ("20260102", "2026-W01-5", ["midnight", "noon in Tokyo", "late"]),
        (date(2026, 1, 2), date(2026, 1, 2), ["midnight", "noon in Tokyo", "late"]),
        ("2026-01-02T00:00:00", "2026-01-02T03:00:00", ["midnight", "noon in Tokyo"]),
        ("2026-01-02 03:00:00", "2026-01-02 03:00:00Z", ["noon in Tokyo"]),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-03T00:00", ["noon in Tokyo", "late", "next"]),
        ("2026-01-03T01:00+02:00", "2026-01-03T02:00+02:00", ["late", "next"]),
        ("0001-01-01", "9999-12-31", list(DAYS)),
    ],
)
async def test_bounds_are_included_and_days_are_whole_days_in_utc(
    start: str | date, end: str | date, expected: list[str]
) -> None:  # case 64
    tape = await dated()
    assert words(await tape.query().between_dates(start, end).all()) == expected


@pytest.mark.parametrize("bound", ["", "soon", "2026-02-30", "2026-01-01T25:00", "0001-01-01T00:00+14:00"])
async def test_a_bound_that_is_no_date_is_invalid_input(bound: str) -> None:
    query = (await dated()).query()
    with pytest.raises(InvalidInput) as caught:
        query.between_dates(bound, "2026-01-01")
    assert caught.value.kind is ErrorKind.INVALID_INPUT
    with pytest.raises(InvalidInput):
        await replace(query, _between_dates=("2026-01-01", bound)).all()


async def test_a_period_cannot_end_before_it_starts() -> None:
    with pytest.raises(InvalidInput, match="starts at '2026-01-02' cannot end at '2026-01-01'"):
        (await dated()).query().between_dates("2026-01-02", "2026-01-01")


# Text


async def test_a_text_narrows_what_anchors_cut_out() -> None:
    tape = await tape_of("hit 1", "#p", "hit 2", "miss", "hit 3")
    assert words(await tape.query().query("HIT").all()) == ["hit 1", "hit 2", "hit 3"]
    assert words(await tape.query().last_anchor().query("hit").limit(1).all()) == ["hit 2"]


async def test_what_was_said_twice_is_found_twice_and_searched_once() -> None:  # cases 35, 165
    tape = await tape_of("yes", "no", "yes")
    assert [entry.id for entry in await tape.query().query("yes").all()] == [1, 3]
    assert [entry.id for entry in await tape.search("yes")] == [3]


async def test_the_fields_have_bubs_names() -> None:
    query = (await tape_of()).query().query("x").between_anchors("a", "b").between_dates("2026-01-01", "2026-01-02")
    query = query.kinds("message").limit(3)
    assert (query._query, query._between_anchors, query._between_dates) == (
        "x",
        ("a", "b"),
        ("2026-01-01", "2026-01-02"),
    )
    assert (query._after_anchor, query._after_last, query._kinds, query._limit) == (None, False, ("message",), 3)
