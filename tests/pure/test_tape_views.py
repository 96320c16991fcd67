"""Views: the messages of a model call, derived from the entries each time and repaired the same way each time."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
import republic

from bub_redis.errors import NotFound
from bub_redis.tape import (
    LAST_ANCHOR,
    InMemoryTapeStore,
    Tape,
    TapeContext,
    TapeEntry,
    default_tape_context,
)
from bub_redis.tape.context import INTERRUPTED

EVERYTHING = TapeContext(anchor=None, select=default_tape_context().select)


def say(text: str, role: str = "user") -> TapeEntry:
    return TapeEntry.message({"role": role, "content": text})


def ask(*ids: str, content: Any = None) -> TapeEntry:
    calls = [{"id": call_id, "name": "work", "arguments": '{"a": 1}'} for call_id in ids]
    return TapeEntry.tool_call(calls, content=content)


async def view_of(*entries: TapeEntry, context: TapeContext | None = None) -> list[republic.Message]:
    tape = Tape("t", InMemoryTapeStore(), context or default_tape_context())
    if entries:
        await tape.append(*entries)
    first = await tape.read_messages()
    assert await tape.read_messages() == first  # the same each time, so that prompt caches hold
    return first


def told(messages: Iterable[republic.Message]) -> list[tuple[str, str]]:
    """Each message as role and text; a tool message as the call it answers and text."""
    return [(m.tool_call.id if m.tool_call else m.role, m.text) for m in messages]


# Where a view starts


async def test_a_view_starts_after_the_last_anchor() -> None:
    assert told(await view_of(say("a"), TapeEntry.anchor("p"), say("b"))) == [("user", "b")]


async def test_a_tape_without_anchors_is_seen_from_its_start() -> None:  # case 82
    assert told(await view_of(say("a"))) == [("user", "a")]
    assert await view_of() == []


async def test_a_view_may_start_after_a_named_anchor_or_at_the_beginning() -> None:
    entries = [say("a"), TapeEntry.anchor("p"), say("b"), TapeEntry.anchor("q"), say("c")]
    select = default_tape_context().select
    after_p = await view_of(*entries, context=TapeContext(anchor="p", select=select))
    assert [message.text for message in after_p] == ["b", "[Anchor created: q]: null", "c"]
    assert len(await view_of(*entries, context=EVERYTHING)) == 5


async def test_a_named_anchor_that_is_missing_is_an_error() -> None:
    with pytest.raises(NotFound, match="'p'"):
        await view_of(say("a"), context=TapeContext(anchor="p"))


# What a view shows


async def test_an_anchor_in_a_view_is_an_assistant_message() -> None:  # case 43
    messages = await view_of(TapeEntry.anchor("p", {"done": ["ä"]}), context=EVERYTHING)
    assert told(messages) == [("assistant", '[Anchor created: p]: {"done": ["ä"]}')]


async def test_kinds_that_are_no_talk_are_not_shown() -> None:  # case 43
    others = [TapeEntry.system("be good"), TapeEntry.event("x"), TapeEntry.error("k", "m"), TapeEntry(0, "x.y", {})]
    assert told(await view_of(*others, say("a"))) == [("user", "a")]


async def test_entries_without_context_never_reach_a_selector() -> None:  # case 115
    hidden = TapeEntry.message({"role": "user", "content": "hidden"}, context=False)
    shown = TapeEntry.message({"role": "user", "content": "shown"}, context=True)
    seen: list[TapeEntry] = []

    def select(entries: Iterable[TapeEntry], context: TapeContext) -> list[Any]:
        seen.extend(entries)
        return []

    for context in (default_tape_context(), TapeContext()):
        assert told(await view_of(hidden, shown, context=context)) == [("user", "shown")]
    await view_of(hidden, shown, context=TapeContext(select=select))
    assert {entry.payload["content"] for entry in seen} == {"shown"}
    tape = Tape("t", InMemoryTapeStore())
    await tape.append(hidden)
    assert len(await tape.query().all()) == 1


async def test_without_a_selector_only_messages_are_shown() -> None:
    entries = [say("a"), ask("1"), TapeEntry.tool_result(["r"], ["1"]), say("b")]
    assert told(await view_of(*entries, context=TapeContext(anchor=LAST_ANCHOR))) == [("user", "a"), ("user", "b")]


async def test_a_selector_may_be_asynchronous() -> None:  # case 61
    async def select(entries: Iterable[TapeEntry], context: TapeContext) -> list[Any]:
        await asyncio.to_thread(lambda: None)
        return [context.state["name"], *(entry.kind for entry in entries)]

    view: list[Any] = await view_of(say("a"), context=TapeContext(select=select, state={"name": "x"}))
    assert view == ["x", "message"]


# Calls and their results


async def test_text_and_calls_of_one_message_come_back_as_one() -> None:  # case 23
    message, result = await view_of(ask("1", content="Let me see."), TapeEntry.tool_result(["r"], ["1"]))
    assert (message.text, [call.id for call in message.tool_calls]) == ("Let me see.", ["1"])
    assert told([result]) == [("1", "r")]


@pytest.mark.parametrize("content", [None, ""])
async def test_calls_without_text_have_no_text_part(content: Any) -> None:  # case 113
    (message, _) = await view_of(ask("1", content=content))
    assert message.parts == ()


async def test_what_a_provider_needs_back_comes_back() -> None:
    entry = TapeEntry.tool_call(
        [{"id": "1", "name": "work", "arguments": "{}", "metadata": {"signature": "s"}}],
        content="so",
        extra={"reasoning": "hm", "provider_data": [{"api_format": "messages", "payload": {"a": 1}}]},
    )
    message = (await view_of(entry))[0]
    assert message.reasoning == "hm"
    assert republic.ProviderData("messages", {"a": 1}) in message.parts
    assert message.tool_calls[0].metadata == {"signature": "s"}


async def test_a_call_without_a_result_is_closed() -> None:  # case 103
    messages = await view_of(say("q"), ask("1"), say("next"))
    assert told(messages) == [("user", "q"), ("assistant", ""), ("1", INTERRUPTED), ("user", "next")]
    assert messages[2].is_error


async def test_only_the_missing_result_is_made_up() -> None:  # case 104
    messages = await view_of(ask("1", "2"), TapeEntry.tool_result(["r2"], ["2"]))
    assert told(messages[1:]) == [("2", "r2"), ("1", INTERRUPTED)]


async def test_results_pair_by_the_ids_of_their_calls() -> None:
    messages = await view_of(ask("1", "2"), TapeEntry.tool_result(["r2", "r1"], ["2", "1"]))
    assert told(messages[1:]) == [("2", "r2"), ("1", "r1")]


async def test_results_in_several_entries_pair_too() -> None:
    results = [TapeEntry.tool_result([f"r{n}"], [str(n)]) for n in (1, 2)]
    assert told((await view_of(ask("1", "2"), *results))[1:]) == [("1", "r1"), ("2", "r2")]


async def test_results_that_bub_wrote_without_ids_pair_by_place() -> None:  # case 105
    old = TapeEntry(0, "tool_result", {"results": ["r1", "r2"]})
    assert told((await view_of(ask("1", "2"), old))[1:]) == [("1", "r1"), ("2", "r2")]


async def test_a_result_is_never_given_to_another_call() -> None:  # case 105
    messages = await view_of(ask("a"), ask("b"), TapeEntry.tool_result(["for a"], ["a"]))
    assert told(messages) == [("assistant", ""), ("a", INTERRUPTED), ("assistant", ""), ("b", INTERRUPTED)]


@pytest.mark.parametrize(
    "orphan",
    [
        TapeEntry.tool_result(["r"], ["nobody"]),
        TapeEntry(0, "tool_result", {"results": ["r", "s"]}),
        TapeEntry(0, "tool_result", {"results": None}),
        TapeEntry(0, "tool_result", {}),
    ],
)
async def test_a_result_without_a_call_is_dropped(orphan: TapeEntry) -> None:  # case 108
    assert told(await view_of(say("q"), orphan, say("next"))) == [("user", "q"), ("user", "next")]


async def test_more_results_than_calls_are_dropped() -> None:  # case 108
    old = TapeEntry(0, "tool_result", {"results": ["r1", "r2"]})
    assert told((await view_of(ask("1"), old))[1:]) == [("1", "r1")]


async def test_an_id_that_comes_again_keeps_the_result_that_follows_it() -> None:  # case 110
    turns = [ask("x"), TapeEntry.tool_result(["one"], ["x"]), ask("x"), TapeEntry.tool_result(["two"], ["x"])]
    assert told(await view_of(*turns)) == [("assistant", ""), ("x", "one"), ("assistant", ""), ("x", "two")]


async def test_a_call_before_the_anchor_is_not_answered_after_it() -> None:  # case 160
    messages = await view_of(ask("1"), TapeEntry.anchor("p"), TapeEntry.tool_result(["r"], ["1"]), say("a"))
    assert told(messages) == [("user", "a")]


async def test_results_that_are_no_text_are_shown_as_json() -> None:
    messages = await view_of(ask("1", "2"), TapeEntry.tool_result([{"ä": [1]}, None], ["1", "2"]))
    assert told(messages[1:]) == [("1", '{"ä": [1]}'), ("2", "null")]


# Texts that no request can carry


async def test_half_a_character_is_replaced_where_it_is_sent_and_kept_where_it_is_stored() -> None:  # case 185
    half = "half \ud83d"
    entries = [say(half), ask("1", content=half), TapeEntry.tool_result([half], ["1"])]
    tape = Tape("t", InMemoryTapeStore())
    await tape.append(*entries)
    assert {message.text for message in await tape.read_messages()} == {"half \ufffd"}
    assert (await tape.query().all())[0].payload["content"] == half


async def test_images_are_shown() -> None:  # case 88
    message = republic.user("look", republic.image(b"png", media_type="image/png"))
    assert await view_of(TapeEntry.message(message.to_dict())) == [message]
