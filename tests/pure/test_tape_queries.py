"""Queries: the anchor first, then the kinds, then the limit, with one meaning in every store."""

import pytest

from bub_redis.errors import InvalidInput, NotFound
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
