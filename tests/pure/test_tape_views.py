"""Views: the messages of a model call, derived from the entries each time and repaired the same way each time."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
import republic
from hypothesis import given, settings
from hypothesis import strategies as st

from bub_redis.errors import NotFound
from bub_redis.tape import (
    LAST_ANCHOR,
    InMemoryTapeStore,
    Tape,
    TapeContext,
    TapeEntry,
    default_tape_context,
    openai_messages,
)
from bub_redis.tape.replay import INTERRUPTED, sendable
from tests.entries import say

EVERYTHING = TapeContext(anchor=None, select=default_tape_context().select)


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


async def test_a_setting_told_by_an_event_does_not_move_the_start() -> None:  # case 15
    tape = Tape("t", InMemoryTapeStore(), default_tape_context())
    await tape.append(say("before"))
    await tape.append_event("setting", {"model": "large"})
    assert told(await tape.read_messages()) == [("user", "before")]


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
    assert told(messages[1:]) == [("1", INTERRUPTED), ("2", "r2")]


async def test_results_pair_by_the_ids_of_their_calls() -> None:
    messages = await view_of(ask("1", "2"), TapeEntry.tool_result(["r2", "r1"], ["2", "1"]))
    assert told(messages[1:]) == [("1", "r1"), ("2", "r2")]  # in the order of the calls


async def test_results_in_several_entries_pair_too() -> None:
    results = [TapeEntry.tool_result([f"r{n}"], [str(n)]) for n in (1, 2)]
    assert told((await view_of(ask("1", "2"), *results))[1:]) == [("1", "r1"), ("2", "r2")]


async def test_results_that_bub_wrote_without_ids_pair_by_place() -> None:  # case 105
    old = TapeEntry(0, "tool_result", {"results": ["r1", "r2"]})
    assert told((await view_of(ask("1", "2"), old))[1:]) == [("1", "r1"), ("2", "r2")]


async def test_a_result_is_never_given_to_another_call() -> None:  # cases 105 and 163
    for result in (TapeEntry.tool_result(["for a"], ["a"]), TapeEntry(0, "tool_result", {"results": ["for a"]})):
        messages = await view_of(ask("a"), ask("b"), result)
        assert told(messages) == [("assistant", ""), ("a", "for a"), ("assistant", ""), ("b", INTERRUPTED)]


async def test_a_result_that_comes_after_other_talk_is_dropped() -> None:  # cases 108 and 163
    messages = await view_of(ask("a"), say("next"), TapeEntry.tool_result(["late"], ["a"]))
    assert told(messages) == [("assistant", ""), ("a", INTERRUPTED), ("user", "next")]


async def test_an_id_that_waits_twice_is_answered_where_it_was_asked_last() -> None:  # case 110
    messages = await view_of(ask("x"), ask("x"), TapeEntry.tool_result(["r"], ["x"]))
    assert told(messages) == [("assistant", ""), ("x", INTERRUPTED), ("assistant", ""), ("x", "r")]


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


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "null", "nonsense"])
async def test_arguments_that_are_no_object_are_shown_as_what_they_are(arguments: str) -> None:
    entry = TapeEntry.tool_call([{"id": "1", "name": "work", "arguments": arguments}])
    (message, _) = await view_of(entry)
    assert message.tool_calls[0].args == {"invalid_arguments": arguments}


async def test_half_a_character_in_arguments_is_replaced() -> None:  # case 185
    entry = TapeEntry.tool_call([{"id": "1", "name": "work", "arguments": r'{"text": "\ud83d"}'}])
    (message, _) = await view_of(entry)
    assert message.tool_calls[0].args == {"text": "\ufffd"}


async def test_images_are_shown() -> None:  # case 88
    message = republic.user("look", republic.image(b"png", media_type="image/png"))
    assert await view_of(TapeEntry.message(message.to_dict())) == [message]


# What older tapes hold


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (["plain", {"type": "text", "text": "typed"}], ["plain", "typed"]),  # cases 89 and 112
        ({"odd": 1}, ['{"odd": 1}']),
        (5, ["5"]),
        ([5, None], ["5", "null"]),
        ([{"type": "mystery", "x": 1}], ["[content that cannot be shown: mystery]"]),
        ([{"no": "type"}], ["[content that cannot be shown: None]"]),
        ([{"type": "image", "media_type": "image/png", "data": "%%%"}], ["[content that cannot be shown: image]"]),
        ([{"type": "image_url"}], ["[content that cannot be shown: image_url]"]),
        ([{"type": "text"}], ["[content that cannot be shown: text]"]),
        ([{"type": "refusal", "refusal": "no"}], ["no"]),
    ],
)
async def test_any_content_is_shown_or_noted(content: Any, shown: list[str]) -> None:  # case 112
    (message,) = await view_of(TapeEntry.message({"role": "user", "content": content}))
    assert [part.text for part in message.parts if isinstance(part, republic.Text)] == shown


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "media_type": "image/png", "data": "cG5n"},
        {"type": "image", "media_type": "image/png", "url": "data:image/png;base64,cG5n"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
        {"type": "image_url", "image_url": "data:image/png;base64,cG5n"},
        {"type": "input_image", "image_url": "data:image/png;base64,cG5n"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "cG5n"}},
    ],
)
async def test_an_image_is_shown_in_whatever_form_it_was_recorded(block: Any) -> None:  # cases 88 and 112
    (message,) = await view_of(TapeEntry.message({"role": "user", "content": [block]}))
    assert message.parts == (republic.Image("image/png", data=b"png"),)


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
            republic.Image("image/png", url="https://example.com/a.png"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "d2F2", "format": "wav"}},
            republic.Audio("audio/wav", data=b"wav"),
        ),
        ({"type": "audio", "media_type": "audio/mpeg", "data": "d2F2"}, republic.Audio("audio/mpeg", data=b"wav")),
        ({"type": "video", "media_type": "video/mp4", "data": "bXA0"}, republic.Video("video/mp4", data=b"mp4")),
    ],
)
async def test_other_media_are_shown(block: Any, part: Any) -> None:
    (message,) = await view_of(TapeEntry.message({"role": "user", "content": [block]}))
    assert message.parts == (part,)


@pytest.mark.parametrize(
    ("role", "shown"),
    [("developer", ("system", "hi")), ("system", ("system", "hi")), ("critic", ("user", "[critic]: hi"))],
)
async def test_any_role_is_shown(role: str, shown: tuple[str, str]) -> None:  # case 112
    assert told(await view_of(say("hi", role))) == [shown]


async def test_messages_of_chat_completions_pair_like_entries() -> None:  # cases 112, 153 and 158
    made = [{"id": c, "type": "function", "function": {"name": "work", "arguments": {"a": 1}}} for c in ("1", "2")]
    messages = await view_of(
        TapeEntry.message({"role": "assistant", "content": None, "tool_calls": made}),
        TapeEntry.message({"role": "tool", "tool_call_id": "2", "content": "r2"}),
        TapeEntry.message({"role": "tool", "tool_call_id": "nobody", "content": "r"}),
        say("next"),
    )
    assert told(messages) == [("assistant", ""), ("1", INTERRUPTED), ("2", "r2"), ("user", "next")]
    assert messages[0].tool_calls[0].args == {"a": 1}


async def test_messages_of_republic_pair_too() -> None:
    made = republic.ToolCall("1", "work", "{}")
    image = republic.Image("image/png", data=b"png")
    stored = [republic.assistant("so", tool_calls=[made]), republic.tool(made, "r", image)]
    messages = await view_of(*(TapeEntry.message(message.to_dict()) for message in stored))
    assert messages == stored


async def test_calls_of_the_old_function_style_pair_by_name() -> None:  # case 112
    messages = await view_of(
        TapeEntry.message({"role": "assistant", "content": None, "function_call": {"name": "work", "arguments": "{}"}}),
        TapeEntry.message({"role": "function", "name": "work", "content": "r"}),
        TapeEntry.message({"role": "function", "name": "work", "content": "orphan"}),
    )
    assert told(messages) == [("assistant", ""), ("call_0", "r")]


async def test_reasoning_and_provider_data_of_a_message_come_back() -> None:
    payload = {
        "role": "assistant",
        "content": "so",
        "reasoning": "hm",
        "provider_data": [{"api_format": "messages", "payload": {"a": 1}}, "damaged"],
    }
    (message,) = await view_of(TapeEntry.message(payload))
    assert (message.text, message.reasoning) == ("so", "hm")
    assert message.parts[-1] == republic.ProviderData("messages", {"a": 1})


async def test_media_in_results_that_bub_recorded_come_back() -> None:
    result = {
        "type": "tool_content",
        "content": [{"type": "text", "text": "a dot"}, {"type": "image", "media_type": "image/png", "data": "cG5n"}],
    }
    (_, message) = await view_of(ask("1"), TapeEntry.tool_result([result], ["1"]))
    assert message.parts == (republic.Text("a dot"), republic.Image("image/png", data=b"png"))


@pytest.mark.parametrize("key", ["stop_reason", "finish_reason", "status"])
async def test_an_answer_that_was_cut_off_is_left_out_with_its_calls(key: str) -> None:  # case 116
    made = [{"id": "1", "name": "work", "arguments": "{}"}]
    cut_off = TapeEntry.message({"role": "assistant", "content": "I wi", "tool_calls": made, key: "aborted"})
    messages = await view_of(say("q"), cut_off, TapeEntry.tool_result(["r"], ["1"]), say("next"))
    assert told(messages) == [("user", "q"), ("user", "next")]


@pytest.mark.parametrize("payload", [{"content": None}, {"content": ""}, {"content": []}, {}])
async def test_messages_that_hold_nothing_are_not_sent(payload: Any) -> None:  # case 113
    for context in (default_tape_context(), openai_messages()):
        assert len(await view_of(TapeEntry.message({"role": "assistant"} | payload), say("a"), context=context)) == 1


DAMAGED = [
    TapeEntry(0, "message", {}),
    TapeEntry(0, "message", {"role": 5, "content": {"a": [None]}}),
    TapeEntry(0, "message", {"role": "tool", "content": "r"}),
    TapeEntry(0, "message", {"role": "function"}),
    TapeEntry(0, "message", {"role": "assistant", "tool_calls": [None, {}, {"function": 3}], "content": 1.5}),
    TapeEntry(0, "message", {"role": "assistant", "tool_calls": "x", "provider_data": 3, "reasoning": []}),
    TapeEntry(0, "tool_call", {}),
    TapeEntry(0, "tool_call", {"calls": [1, {"id": 7, "name": None, "arguments": [1]}], "content": {"a": 1}}),
    TapeEntry(0, "tool_result", {"results": ["r"], "call_ids": [None]}),
    TapeEntry(0, "tool_result", {"results": ["r"], "call_ids": 5}),
    TapeEntry(0, "anchor", {"state": {"half": "\ud83d"}}),
]


async def test_wherever_history_is_cut_no_half_of_a_pair_is_sent() -> None:  # case 1
    history = [
        say("q"),
        ask("1", "2"),
        TapeEntry.tool_result(["r1", "r2"], ["1", "2"]),
        ask("3"),
        say("a", "assistant"),
    ]
    for begin in range(len(history)):
        for end in range(begin + 1, len(history) + 1):
            messages = await view_of(*history[begin:end])
            asked = [call.id for message in messages for call in message.tool_calls]
            assert [message.tool_call.id for message in messages if message.tool_call] == asked
            # A limit cuts what was selected once more.
            sent = sendable(messages[: end - begin])
            asked = [call.id for message in sent for call in message.tool_calls]
            assert [message.tool_call.id for message in sent if message.tool_call] == asked


async def test_a_view_made_again_adds_nothing_to_the_tape() -> None:  # case 168
    tape = Tape("t", InMemoryTapeStore())
    await tape.append(say("q"), ask("1"), say("next"))  # repaired at each reading
    before = await tape.query().all()
    for _ in range(3):
        assert len(await tape.read_messages()) == 4
    assert await tape.query().all() == before


async def test_no_entry_makes_a_tape_unusable() -> None:  # cases 112, 156 and 159
    for context in (default_tape_context(), openai_messages(), TapeContext()):
        view = TapeContext(anchor=None, select=context.select)
        messages: list[Any] = await view_of(*DAMAGED, *reversed(DAMAGED), say("still here"), context=view)
        for message in sendable(messages):
            assert message.to_dict()
        last = messages[-1]
        assert (last.text if isinstance(last, republic.Message) else last["content"]) == "still here"


WORDS = st.sampled_from(
    "role content text type tool assistant user system image image_url input_audio video url data source media_type "
    "reasoning thinking provider_data api_format payload tool_calls calls tool_call tool_call_id function_call id name "
    "arguments metadata results call_ids tool_content refusal finish_reason data:image/png;base64,aGk= \ud800".split(
        " "
    )
)
SHAPES: st.SearchStrategy[Any] = st.recursive(
    WORDS | st.none() | st.integers(), lambda values: st.lists(values) | st.dictionaries(WORDS, values), max_leaves=12
)
KINDS = st.sampled_from(["message", "tool_call", "tool_result", "anchor"])


@settings(max_examples=300, deadline=None)
@given(entries=st.lists(st.tuples(KINDS, st.dictionaries(WORDS, SHAPES)), min_size=1, max_size=4))
def test_no_payload_of_any_shape_does(entries: list[tuple[str, dict[str, Any]]]) -> None:  # cases 112, 156 and 159
    """Also not one whose role or type is a list: what is looked up may be anything."""
    for context in (EVERYTHING, TapeContext(anchor=None, select=openai_messages().select)):
        messages = asyncio.run(view_of(*(TapeEntry(0, *entry) for entry in entries), context=context))
        assert all(message.to_dict() for message in sendable(messages))


async def test_no_entry_keeps_a_fork_from_its_merge() -> None:  # cases 102 and 112
    tape = Tape("t", InMemoryTapeStore())
    odd = TapeEntry(0, "event", {"name": "run", "data": {"usage": 5}})
    async with tape.fork_tape() as fork:
        await fork.append(*DAMAGED, TapeEntry(0, "event", {"name": "run"}), odd)
    assert len(await tape.query().all()) > len(DAMAGED)


# Chat Completions


async def completions(*entries: TapeEntry, anchor: str | None = None) -> list[dict[str, Any]]:
    messages: list[Any] = await view_of(*entries, context=TapeContext(anchor=anchor, select=openai_messages().select))
    return messages


async def test_entries_as_chat_completions() -> None:
    assert await completions(
        TapeEntry.anchor("p", {"done": ["ä"]}),
        TapeEntry.message({"role": "user", "content": "q", "name": "ada"}),
        ask("1", "2", content="Let me see."),
        TapeEntry.tool_result([{"ä": 1}, "r2"], ["1", "2"]),
        TapeEntry.message({"role": "developer", "content": "be brief"}),
        TapeEntry.event("noise"),
    ) == [
        {"role": "assistant", "content": '[Anchor created: p]: {"done": ["ä"]}'},
        {"role": "user", "content": "q", "name": "ada"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "work", "arguments": '{"a": 1}'}},
                {"id": "2", "type": "function", "function": {"name": "work", "arguments": '{"a": 1}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": '{"ä": 1}'},
        {"role": "tool", "tool_call_id": "2", "content": "r2"},
        {"role": "developer", "content": "be brief"},
    ]


async def test_chat_completions_start_after_the_last_anchor() -> None:
    messages: list[Any] = await view_of(say("a"), TapeEntry.anchor("p"), say("b"), context=openai_messages())
    assert messages == [{"role": "user", "content": "b"}]


async def test_null_beside_calls_stays_null() -> None:  # case 113
    (message, _) = await completions(ask("1", content=None))
    assert message["content"] is None


async def test_ids_that_come_again_are_renamed_there() -> None:  # case 110
    turns = [ask("x"), TapeEntry.tool_result(["one"], ["x"]), ask("x"), TapeEntry.tool_result(["two"], ["x"])]
    messages = await completions(*turns)
    ids = [message["tool_calls"][0]["id"] for message in messages[::2]]
    assert ids[0] == "x"
    assert len(set(ids)) == 2
    assert [(m["tool_call_id"], m["content"]) for m in messages[1::2]] == [(ids[0], "one"), (ids[1], "two")]


async def test_media_as_chat_completions() -> None:
    stored = republic.user("look", republic.image(b"png", media_type="image/png"))
    native = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
    first, second = await completions(
        TapeEntry.message(stored.to_dict()), TapeEntry.message({"role": "user", "content": ["see", native]})
    )
    assert first["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
    ]
    assert second["content"] == [{"type": "text", "text": "see"}, native]


# The last look before messages are sent


def test_messages_that_are_right_are_sent_as_they_are() -> None:
    made = republic.ToolCall("1", "work", "{}")
    messages = [republic.user("q"), republic.assistant(tool_calls=[made]), republic.tool(made, "r")]
    assert all(sent is message for sent, message in zip(sendable(messages), messages, strict=True))


def test_pairs_are_repaired_once_more_before_they_are_sent() -> None:  # cases 110, 154, 157 and 159
    made = republic.ToolCall("x", "work", "{}")
    asked, answered = republic.assistant(tool_calls=[made]), republic.tool(made, "r \ud83d")
    sent = sendable([answered, asked, republic.user("next"), asked, answered, republic.assistant()])
    assert told(sent) == [
        ("assistant", ""),
        ("x", INTERRUPTED),
        ("user", "next"),
        ("assistant", ""),
        ("x_2", "r \ufffd"),
    ]
    assert sent[3].tool_calls[0].id == "x_2"
    assert sendable(sent) == sent


def test_texts_and_dicts_are_sent_too() -> None:
    dicts = [
        "plain",
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "w", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ]
    assert told(sendable(dicts)) == [("user", "plain"), ("assistant", ""), ("1", "r")]
