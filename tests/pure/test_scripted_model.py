"""A scripted model behaves as a real one behind Republic: it streams, calls tools, fails and hangs."""

import asyncio
import json
import time

import pytest
import republic
from republic import errors
from republic.events import TextDelta, UsageDelta

from bub_redis.testing import (
    ModelRequest,
    Reply,
    ScriptedModel,
    ScriptExhausted,
    call,
    calls,
    cut,
    fail,
    garbage,
    say,
    stall,
    wait_until,
)

HELLO = [republic.user("hello")]


async def ask(model: republic.ChatModel, *messages: republic.Message) -> republic.Response[None]:
    async with model.stream(list(messages) or HELLO) as stream:
        async for _ in stream:
            pass
        return stream.response


async def pieces(model: republic.ChatModel) -> list[str]:
    async with model.stream(HELLO) as stream:
        return [event.chunk async for event in stream if isinstance(event, TextDelta)]


async def test_text_arrives_word_by_word() -> None:
    assert await pieces(ScriptedModel(say(" Your order\nis here."))) == [
        " ",
        "Your ",
        "order\n",
        "is ",
        "here.",
    ]


@pytest.mark.parametrize(
    ("text", "chunks", "expected"),
    [("abcde", 2, ["ab", "cde"]), ("ab", 5, ["a", "b"]), ("", 3, []), ("a b", 1, ["a b"])],
)
async def test_text_arrives_in_as_many_pieces_as_asked_for(text: str, chunks: int, expected: list[str]) -> None:
    assert await pieces(ScriptedModel(say(text, chunks=chunks))) == expected


def test_a_text_in_no_pieces_is_refused() -> None:
    with pytest.raises(ValueError, match="chunks is 0"):
        say("a", chunks=0)


async def test_replies_are_played_in_order() -> None:
    model = ScriptedModel(say("one"), say("two"))
    assert [(await ask(model)).text, (await ask(model)).text] == ["one", "two"]


async def test_a_script_that_ran_out_says_how_many_replies_it_had() -> None:
    model = ScriptedModel(say("one"))
    await ask(model)
    with pytest.raises(ScriptExhausted, match="has 1 replies"):
        await ask(model)


async def test_a_tool_call_carries_its_arguments() -> None:
    response = await ask(ScriptedModel(call("add", _id="c1", a=1, note="a long one, streamed in pieces: é")))
    [made] = response.tool_calls
    assert (made.id, made.name, made.args) == (
        "c1",
        "add",
        {"a": 1, "note": "a long one, streamed in pieces: é"},
    )
    assert response.finish_reason == "tool_calls"


async def test_several_calls_come_in_one_response_after_their_text() -> None:
    response = await ask(ScriptedModel(calls(call("add", a=1), call("stop"), text="Let me see.")))
    assert response.text == "Let me see."
    assert [(made.name, made.args) for made in response.tool_calls] == [("add", {"a": 1}), ("stop", {})]


async def test_a_call_without_an_id_gets_a_new_one_each_time_it_is_played() -> None:
    model = ScriptedModel(lambda _: calls(call("add"), call("add")))
    ids = [made.id for _ in range(2) for made in (await ask(model)).tool_calls]
    assert len(set(ids)) == 4


async def test_arguments_can_be_broken() -> None:
    [made] = (await ask(ScriptedModel(call("add", _raw='{"a": ')))).tool_calls
    with pytest.raises(json.JSONDecodeError):
        _ = made.args


async def test_usage_is_reported_when_given_and_unknown_otherwise() -> None:
    model = ScriptedModel(say("a", usage=(7, 0)), calls(call("b"), usage=(8, 2)), say("c"))
    reported: list[list[tuple[int, int]]] = []
    for _ in range(3):
        async with model.stream(HELLO) as stream:
            usages = [event.usage async for event in stream if isinstance(event, UsageDelta)]
            reported.append([(usage.input_tokens, usage.output_tokens) for usage in usages])
    assert reported == [[(7, 0)], [(8, 2)], []]


async def test_a_refusal_is_the_provider_s_status_error() -> None:
    model = ScriptedModel(fail(400, {"error": {"code": "context_length_exceeded"}}, {"x-request-id": "r1"}))
    with pytest.raises(errors.APIStatusError, match="context_length_exceeded") as caught:
        await ask(model)
    assert (caught.value.status_code, caught.value.request_id) == (400, "r1")


async def test_a_refused_request_is_not_repeated_unless_asked_for() -> None:
    model = ScriptedModel(fail(503, "busy"), say("never"))
    with pytest.raises(errors.APIStatusError):
        await ask(model)
    assert len(model.requests) == 1

    patient = ScriptedModel(fail(503, "busy"), say("at last"), max_retries=1)
    assert (await ask(patient)).text == "at last"


async def test_a_cut_stream_is_a_lost_connection_after_its_text() -> None:
    seen: list[str] = []
    with pytest.raises(errors.APIConnectionError):
        async with ScriptedModel(cut("half an ")).stream(HELLO) as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    seen.append(event.chunk)  # noqa: PERF401 - what came before the error is the point
    assert seen == ["half ", "an "]


async def test_garbage_is_a_chunk_that_is_not_json() -> None:
    with pytest.raises(json.JSONDecodeError):
        await ask(ScriptedModel(garbage("so far ")))


async def test_a_stalled_stream_can_be_cancelled_in_its_silence() -> None:
    heard: list[str] = []

    async def listen() -> None:
        async with ScriptedModel(stall(600, after="Hm.", then="never")).stream(HELLO) as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    heard.append(event.chunk)  # noqa: PERF401 - filled while another task looks

    listening = asyncio.create_task(listen())
    await wait_until(lambda: heard, "the first words came")
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    assert heard == ["Hm."]


async def test_a_stalled_stream_goes_on_afterwards() -> None:
    assert (await ask(ScriptedModel(stall(0.01, after="Hm. ", then="Yes.")))).text == "Hm. Yes."


async def test_pieces_are_paced_by_the_model_or_the_reply() -> None:
    model = ScriptedModel(say("a b c"), say("a b c", delay_s=0), delay_s=0.05)

    async def took_s() -> float:
        begun = time.monotonic()
        await ask(model)
        return time.monotonic() - begun

    assert await took_s() >= 0.1
    assert await took_s() < 0.05


async def test_the_first_piece_is_not_delayed() -> None:
    async with ScriptedModel(say("a b"), delay_s=600).stream(HELLO) as stream:
        async with asyncio.timeout(5):
            assert isinstance(await anext(aiter(stream)), TextDelta)


async def test_what_was_sent_is_recorded() -> None:
    model = ScriptedModel(say("a"), name="tiny")
    tool = republic.Tool("add", "Add numbers.", {"type": "object", "properties": {}})
    async with model.stream([republic.system("s"), republic.user("u")], tools=[tool], temperature=0) as stream:
        async for _ in stream:
            pass
    [request] = model.requests
    assert request.messages == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert [sent["function"]["name"] for sent in request.tools] == ["add"]
    assert (request.options["model"], request.options["temperature"]) == ("tiny", 0)


async def test_a_script_may_be_a_function_of_what_it_is_shown() -> None:
    def script(request: ModelRequest) -> Reply:
        return say(f"got {request.tool_results}") if request.tool_results else call("add", text=request.prompt)

    model = ScriptedModel(script)
    [made] = (await ask(model)).tool_calls
    assert made.args == {"text": "hello"}
    answer = await ask(model, *HELLO, republic.assistant(tool_calls=[made]), republic.tool(made, "3"))
    assert answer.text == "got ['3']"


async def test_tool_results_of_earlier_turns_are_not_shown_as_new() -> None:
    old = republic.ToolCall("c1", "add", "{}")
    history = [republic.user("old"), republic.assistant(tool_calls=[old]), republic.tool(old, "1")]
    model = ScriptedModel(say("a"))
    await ask(model, *history, republic.assistant("done"), republic.user("new"))
    assert (model.requests[0].prompt, model.requests[0].tool_results) == ("new", [])


async def test_a_script_may_be_asynchronous_and_serve_many_sessions_at_once() -> None:
    everyone_asked = asyncio.Barrier(20)

    async def script(request: ModelRequest) -> Reply:
        await everyone_asked.wait()
        return say(request.prompt)

    model = ScriptedModel(script)
    answers = await asyncio.gather(*(ask(model, republic.user(f"s{n}")) for n in range(20)))
    assert [answer.text for answer in answers] == [f"s{n}" for n in range(20)]


def test_a_function_beside_replies_is_refused() -> None:
    def script(_request: ModelRequest) -> Reply:
        return say("a")

    with pytest.raises(TypeError, match="either replies or one function"):
        ScriptedModel(say("a"), script)  # type: ignore[call-overload]


async def test_a_model_outlives_the_blocks_it_was_entered_in() -> None:
    model = ScriptedModel(say("one"), say("two"))
    async with model:
        await ask(model)
    async with model:
        assert (await ask(model)).text == "two"


def test_a_model_works_in_one_event_loop_after_another() -> None:
    model = ScriptedModel(say("one"), say("two"))
    assert [asyncio.run(ask(model)).text, asyncio.run(ask(model)).text] == ["one", "two"]


async def test_leaving_a_stream_early_is_fine() -> None:
    model = ScriptedModel(say("a b c"), say("next"))
    async with model.stream(HELLO) as stream:
        await anext(aiter(stream))
    assert (await ask(model)).text == "next"


async def test_a_request_that_does_not_stream_gets_the_whole_answer() -> None:
    model = ScriptedModel(calls(call("add", _id="c1", a=1), text="So: ", usage=(1, 2)), stall(0.01, then="a"))
    response = await model.chat(HELLO)
    assert (response.text, response.tool_calls[0].args, response.token_usage.output_tokens) == (
        "So: ",
        {"a": 1},
        2,
    )
    assert (await model.chat(HELLO)).text == "a"


async def test_a_request_that_does_not_stream_meets_the_same_faults() -> None:
    model = ScriptedModel(cut("a"), garbage())
    with pytest.raises(errors.APIConnectionError):
        await model.chat(HELLO)
    with pytest.raises(json.JSONDecodeError):
        await model.chat(HELLO)
