"""Forks: one turn or run works on a copy, and what it added reaches the tape at once or not at all."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from bub_redis.errors import Fenced, InvalidInput, NotFound, Outage
from bub_redis.tape import InMemoryTapeStore, Receipt, Tape, TapeEntry, TapeQuery
from bub_redis.tape.fork import Fork
from bub_redis.tape.replay import INTERRUPTED
from bub_redis.tape.store import Head
from tests.entries import say


def ask(*ids: str) -> TapeEntry:
    return TapeEntry.tool_call([{"id": call_id, "name": "work", "arguments": "{}"} for call_id in ids])


def words(entries: Iterable[TapeEntry]) -> list[str]:
    return [entry.payload["content"] for entry in entries if entry.kind == "message"]


async def receipts(tape: Tape) -> list[dict[str, Any]]:
    events = await tape.query().kinds("event").all()
    return [event.payload["data"] for event in events if event.payload["name"] == "turn.receipt"]


@pytest.fixture
async def tape() -> Tape:
    tape = Tape("t", InMemoryTapeStore())
    await tape.append(say("old"))
    return tape


# What is merged, and when


async def test_a_fork_without_additions_leaves_the_tape_as_it_was(tape: Tape) -> None:
    async with tape.fork_tape():
        pass
    assert await receipts(tape) == []


async def test_an_exception_merges_what_there_was(tape: Tape) -> None:  # case 102
    with pytest.raises(ZeroDivisionError):
        async with tape.fork_tape() as fork:
            await fork.append(say("a"))
            raise ZeroDivisionError("oh")
    assert words(await tape.query().all()) == ["old", "a"]
    assert [(r["status"], r["error"]) for r in await receipts(tape)] == [("failed", "ZeroDivisionError: oh")]


async def test_a_cancel_merges_what_there_was(tape: Tape) -> None:  # case 102
    appended = asyncio.Event()

    async def work() -> None:
        async with tape.fork_tape() as fork:
            await fork.append(say("a"))
            appended.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await appended.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert words(await tape.query().all()) == ["old", "a"]
    assert [receipt["status"] for receipt in await receipts(tape)] == ["cancelled"]


async def test_open_calls_are_closed_by_the_merge(tape: Tape) -> None:  # cases 102 and 104
    async with tape.fork_tape() as fork:
        await fork.append(ask("a", "b", "a"), TapeEntry.tool_result(["done"], ["a"]))
    closing = (await tape.query().kinds("tool_result").all())[-1]
    assert closing.payload == {"results": [INTERRUPTED, INTERRUPTED], "call_ids": ["b", "a"]}
    assert closing.meta == {"interrupted": True}


async def test_a_merge_may_be_repeated(tape: Tape) -> None:  # case 94
    store = tape.store
    assert isinstance(store, InMemoryTapeStore)
    async with store.session("t", "turn-1", 1.0) as grant:
        fork = await Fork.open(store, grant)
        await fork.append("t", say("a"))
        first = await fork.merge("completed")
        again = await fork.merge("completed")
    assert first == again
    assert words(await tape.query().all()) == ["old", "a"]


async def test_a_turn_that_was_merged_is_not_merged_again(tape: Tape) -> None:  # case 94
    for text in ("a", "a again"):
        async with tape.fork_tape(run_id="turn-1") as fork:
            await fork.append(say(text))
    assert words(await tape.query().all()) == ["old", "a"]


async def test_a_fork_that_lost_its_session_is_refused(tape: Tape) -> None:  # case 183
    store = tape.store
    assert isinstance(store, InMemoryTapeStore)
    async with store.session("t", "slow", 1.0) as grant:
        late = await Fork.open(store, grant)
    async with tape.fork_tape() as fork:
        await fork.append(say("newer"))
    await late.append("t", say("stale"))
    with pytest.raises(Fenced):
        await late.merge("completed")
    assert words(await tape.query().all()) == ["old", "newer"]


# What a fork sees


async def test_a_fork_reads_parent_and_overlay_as_one_tape(tape: Tape) -> None:  # case 90
    async with tape.fork_tape() as fork:
        (appended,) = await fork.append(say("a"))
        seen = await fork.query().all()
    assert words(seen) == ["old", "a"]
    assert [entry.id for entry in seen] == [1, 2]
    assert appended.id == 2


async def test_a_fork_sees_its_parent_as_it_was(tape: Tape) -> None:  # case 179
    async with tape.fork_tape() as fork:
        await tape.append(say("meanwhile"))
        assert words(await fork.query().all()) == ["old"]
        await fork.append(say("a"))
    assert words(await tape.query().all()) == ["old", "meanwhile", "a"]


async def test_an_anchor_of_the_parent_is_found_before_filters_and_limit(tape: Tape) -> None:  # case 54
    await tape.handoff(name="p")
    await tape.append(say("b"))
    async with tape.fork_tape() as fork:
        await fork.append(say("c"), say("d"))
        assert words(await fork.query().last_anchor().kinds("message").all()) == ["b", "c", "d"]
        assert words(await fork.query().last_anchor().kinds("message").limit(2).all()) == ["b", "c"]


async def test_an_anchor_of_the_overlay_is_later_than_any_of_the_parent(tape: Tape) -> None:  # case 38
    await tape.handoff(name="p")
    async with tape.fork_tape() as fork:
        await fork.append(say("b"))
        await fork.handoff(name="q")
        await fork.append(say("c"))
        assert words(await fork.query().last_anchor().all()) == ["c"]
        assert words(await fork.query().after_anchor("p").all()) == ["b", "c"]


async def test_a_missing_anchor_is_missing_in_a_fork_too(tape: Tape) -> None:  # case 62
    async with tape.fork_tape() as fork:
        await fork.append(say("a"))
        with pytest.raises(NotFound):
            await fork.query().last_anchor().all()
        assert [message.text for message in await fork.read_messages()] == ["old", "a"]  # case 82


async def test_an_outage_of_the_parent_is_no_empty_parent(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    async def down(query: TapeQuery, head: Head) -> list[TapeEntry]:
        raise Outage("no answer")

    async with tape.fork_tape() as fork:  # case 92
        await fork.append(say("a"))
        monkeypatch.setattr(tape.store, "fetch_until", down)
        for query in (fork.query(), fork.query().last_anchor()):
            with pytest.raises(Outage):
                await query.all()
        with pytest.raises(Outage):
            await fork.read_messages()


async def test_other_tapes_pass_through_a_fork(tape: Tape) -> None:  # case 54
    async with tape.fork_tape(merge_back=False) as fork:
        await fork.scoped("other").append(say("x"))
        assert words(await fork.scoped("other").query().all()) == ["x"]
    assert words(await tape.scoped("other").query().all()) == ["x"]


async def test_images_and_odd_contents_survive_and_the_callers_object_is_untouched(tape: Tape) -> None:
    image = {"type": "image", "media_type": "image/png", "data": "aaaa"}
    payload: dict[str, Any] = {"role": "user", "content": ["plain", image]}  # cases 88 and 89
    async with tape.fork_tape() as fork:
        await fork.append(TapeEntry.message(payload))
    assert payload == {"role": "user", "content": ["plain", image]}
    assert (await tape.query().kinds("message").all())[-1].payload == payload


async def test_an_entry_that_cannot_be_stored_is_refused_at_its_append(tape: Tape) -> None:  # case 70
    async with tape.fork_tape() as fork:
        with pytest.raises(InvalidInput):
            await fork.append(say("a"), TapeEntry.event("bad", {"value": b""}))
        await fork.append(say("b"))
    assert words(await tape.query().all()) == ["old", "b"]


# Forks beside each other


async def test_forks_of_two_tapes_do_not_see_each_other(tape: Tape) -> None:  # case 50
    both_wrote = asyncio.Barrier(2)

    async def work(name: str) -> list[str]:
        async with tape.scoped(name).fork_tape() as fork:
            await fork.append(say(name))
            await both_wrote.wait()
            return words(await fork.query().all())

    a, b = await asyncio.gather(work("a"), work("b"))
    assert (a, b) == (["a"], ["b"])


async def test_forks_of_one_tape_come_one_after_the_other(tape: Tape) -> None:  # case 95
    async def work(name: str) -> None:
        async with tape.fork_tape() as fork:
            for number in range(2):
                await fork.append(say(f"{name}{number}"))
                await asyncio.to_thread(lambda: None)

    await asyncio.gather(*(work(name) for name in "abcde"))
    texts = words(await tape.query().all())[1:]
    assert [text[0] for text in texts[::2]] == [text[0] for text in texts[1::2]]
    assert sorted(texts) == [f"{name}{number}" for name in "abcde" for number in range(2)]


async def test_a_fork_may_be_closed_in_another_task(tape: Tape) -> None:  # cases 13 and 50
    opening = tape.fork_tape()
    fork = await asyncio.create_task(opening.__aenter__())
    await fork.append(say("a"))
    await asyncio.create_task(opening.__aexit__(None, None, None))
    assert words(await tape.query().all()) == ["old", "a"]


async def test_the_receipt_says_what_the_run_used_and_where_its_answer_is(tape: Tape) -> None:  # case 52
    usage = {"input_tokens": 10, "output_tokens": 2}
    async with tape.fork_tape(run_id="r") as fork:
        await fork.append(
            say("q"),
            TapeEntry.event("run", {"status": "ok", "usage": usage}),
            TapeEntry.event("run", {"status": "ok", "usage": usage | {"input_tokens": None, "cached": True}}),
            say("the answer", "assistant"),
        )
    *_, answer, last = await tape.query().all()
    receipt = Receipt.from_entry(last, f"0-{last.id}")
    assert receipt.usage == {"input_tokens": 10, "output_tokens": 4}  # case 19: only plain numbers count
    assert (receipt.turn, receipt.answer_entry) == ("r", answer.id)


async def test_usage_that_nobody_told_is_none(tape: Tape) -> None:  # case 17
    async with tape.fork_tape() as fork:
        await fork.append(TapeEntry.event("run", {"status": "ok"}))
    assert [receipt["usage"] for receipt in await receipts(tape)] == [None]
