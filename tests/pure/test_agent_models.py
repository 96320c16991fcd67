"""Models: what may be called, and what a failed call tells: cause, the provider's words, remedy, no secret."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
import republic
from republic.providers import OpenAICompatible

from bub_redis.agent import Agent, StreamEvent
from bub_redis.agent.events import LLMCallStarted
from bub_redis.errors import Action, ContextOverflow, InvalidInput, ModelError, TimedOut
from bub_redis.testing import ScriptedModel, call, cut, fail, garbage, say, stall, wait_until
from tests.pure.runs import answered, entries, events, played

Respond = Callable[[httpx2.Request], httpx2.Response]


def provider(respond: Respond, **options: Any) -> republic.ChatModel:
    """A model of an OpenAI-compatible provider that answers as `respond` says."""
    client = httpx2.AsyncClient(transport=httpx2.MockTransport(respond), trust_env=False)
    return OpenAICompatible(http_client=client, max_retries=0, **options).get_model("m")


def stream_of(*chunks: Any, done: bool = True) -> Respond:
    """A response with status 200 that streams `chunks`."""
    lines = [f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks]
    body = "".join(lines) + ("data: [DONE]\n\n" if done else "")
    return lambda _: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body.encode())


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


async def failure_of(model: Any) -> ModelError:
    with pytest.raises(ModelError) as raised:
        await played(Agent(model=model))
    assert "\n" not in str(raised.value)
    return raised.value


# What may be called


async def test_a_model_is_named_by_provider_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(OpenAICompatible):
        name = "local-test"

        def __init__(self, **options: Any) -> None:
            respond = stream_of(delta(content="Hello!"))
            client = httpx2.AsyncClient(transport=httpx2.MockTransport(respond), trust_env=False)
            super().__init__(**{**options, "http_client": client})

    republic.register_provider(Local)
    monkeypatch.setattr(Local, "DEFAULT_API_BASE", "http://local.invalid/v1")
    agent = Agent(model="local-test:small")
    assert await answered(agent) == "Hello!"
    assert await answered(agent, "again") == "Hello!"
    assert [data["model"] for data in await events(agent, "run")] == ["local-test:small"] * 2


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("gpt-5", "write it as provider:model"),
        ("openai:", "write it as provider:model"),
        (":m", "write it as provider:model"),
        ("opnai:gpt-5", "no provider 'opnai' .* known are: .*openai"),
    ],
)
async def test_a_spec_that_names_nothing_is_refused_before_anything_is_written(spec: str, why: str) -> None:
    agent = Agent(model=spec)
    with pytest.raises(ModelError, match=why) as raised:
        await played(agent)
    assert raised.value.action is Action.STOP
    assert await entries(agent) == []


def test_an_agent_may_be_used_in_one_event_loop_after_another() -> None:
    agent = Agent(model=ScriptedModel(say("one"), say("two")))
    assert [asyncio.run(answered(agent)) for _ in range(2)] == ["one", "two"]


async def test_a_model_that_was_passed_in_is_not_closed() -> None:
    model = provider(stream_of(delta(content="ok")))
    await played(Agent(model=model))
    assert not model.provider.is_closed


# What a failed call tells


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
async def test_what_may_pass_is_worth_a_retry(status: int) -> None:
    error = await failure_of(ScriptedModel(fail(status, "wait")))
    assert error.action is Action.RETRY
    assert str(error) == f"scripted:scripted answered HTTP {status}: wait; try again later"


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (400, "the same request will be refused again"),
        (401, "set REPUBLIC_SCRIPTED_API_KEY"),
        (403, "set REPUBLIC_SCRIPTED_API_KEY"),
        (404, "check the model's name and REPUBLIC_SCRIPTED_API_BASE"),
        (422, "the same request will be refused again"),
    ],
)
async def test_what_will_not_pass_is_not(status: int, remedy: str) -> None:
    error = await failure_of(ScriptedModel(fail(status, "no")))
    assert error.action is Action.STOP
    assert remedy in str(error)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "too\n warm", "code": "x"}},
        {"error": "too warm"},
        {"message": "too warm"},
        {"detail": [{"message": "too warm"}]},
        [{"error": {"message": "too warm"}}],
        {"error": None, "message": "too warm"},
        "too warm",
    ],
)
async def test_the_provider_is_quoted_in_its_own_words(body: Any) -> None:  # case 49
    text = body if isinstance(body, str) else json.dumps(body)
    assert "HTTP 400: too warm;" in str(await failure_of(ScriptedModel(fail(400, text))))


@pytest.mark.parametrize("body", ["", "{}", "[]", '{"error": {}}', "[" * 100_000, "x" * 1_000_000])
async def test_an_error_body_may_be_anything(body: str) -> None:
    assert len(str(await failure_of(ScriptedModel(fail(400, body))))) < 700


async def test_a_key_that_the_provider_repeats_is_not_told() -> None:
    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(401, json={"error": {"message": f"bad {request.headers['authorization']}"}})

    error = await failure_of(provider(respond, api_key="sk-very-secret-1234"))
    assert "sk-very-secret-1234" not in str(error)
    assert "bad Bearer ***" in str(error)


async def test_a_key_with_a_line_break_is_not_told() -> None:
    def respond(_request: httpx2.Request) -> httpx2.Response:
        raise httpx2.LocalProtocolError("Illegal header value b'Bearer sk-very-secret-1234\\n'")

    error = await failure_of(provider(respond, api_key="sk-very-secret-1234\n"))
    assert "sk-very" not in str(error)
    assert "LocalProtocolError" in str(error)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (httpx2.ConnectError("Connection refused"), "no connection (Connection refused)"),
        (httpx2.ReadTimeout("slow"), "did not answer in time"),
        (httpx2.RemoteProtocolError("peer closed"), "no connection (peer closed)"),
    ],
)
async def test_a_server_out_of_reach_is_worth_a_retry(raised: Exception, told: str) -> None:
    def respond(_request: httpx2.Request) -> httpx2.Response:
        raise raised

    error = await failure_of(provider(respond))
    assert error.action is Action.RETRY
    assert told in str(error)
    assert "try again later" in str(error)


async def test_missing_credentials_are_told_with_their_variable() -> None:
    class Login(httpx2.Auth):
        def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
            raise republic.errors.AuthenticationError("nobody is logged in")
            yield request

    error = await failure_of(provider(stream_of(), auth=Login()))
    assert str(error) == "openai-compatible:m: nobody is logged in; set REPUBLIC_OPENAI_COMPATIBLE_API_KEY"


async def test_what_a_provider_cannot_do_is_not_worth_a_retry() -> None:
    elsewhere = republic.tools.NativeTool("responses", {})
    with pytest.raises(ModelError, match="cannot be sent through the 'chat' API format") as raised:
        await played(Agent(model=ScriptedModel(say("never"))), options={"tools": [elsewhere]})
    assert raised.value.action is Action.STOP


async def test_a_request_that_cannot_be_written_is_not_worth_a_retry() -> None:
    with pytest.raises(ModelError, match="cannot be asked this: TypeError") as raised:
        await played(Agent(model=ScriptedModel(say("never"))), options={"extra_body": {"x": object()}})
    assert raised.value.action is Action.STOP


# Answers that break off or make no sense


@pytest.mark.parametrize("reply", [cut("Half"), garbage("Half")])
async def test_an_answer_that_breaks_off_is_worth_a_retry(reply: Any) -> None:
    assert (await failure_of(ScriptedModel(reply))).action is Action.RETRY


@pytest.mark.parametrize(
    "chunk", ["[]", "5", '{"choices": 5}', '{"choices": [{"delta": {"tool_calls": [3]}}]}', "{", '"\\ud83d"']
)
async def test_a_chunk_of_another_shape_is_an_error(chunk: str) -> None:
    error = await failure_of(provider(stream_of(delta(content="Half"), chunk)))
    assert "sent an answer that makes no sense" in str(error)
    assert error.action is Action.RETRY


@pytest.mark.parametrize("respond", [stream_of(delta(content="Half"), done=False), stream_of("", done=False)])
async def test_a_stream_without_its_end_is_an_error(respond: Respond) -> None:
    assert (await failure_of(provider(respond))).action is Action.RETRY


async def test_a_web_page_is_no_answer() -> None:
    error = await failure_of(provider(lambda _: httpx2.Response(200, html="<html>log in</html>")))
    assert "check REPUBLIC_OPENAI_COMPATIBLE_API_BASE" in str(error)


@pytest.mark.parametrize(
    ("told", "action"),
    [
        ({"message": "overloaded", "type": "overloaded_error"}, Action.RETRY),
        ({"message": "slow down", "code": 429}, Action.RETRY),
        ({"message": "bad tool", "code": 400}, Action.STOP),
        ("gone", Action.RETRY),
    ],
)
async def test_an_error_inside_a_stream_is_an_error(told: Any, action: Action) -> None:
    error = await failure_of(provider(stream_of(delta(content="Half"), {"error": told})))
    assert (told if isinstance(told, str) else told["message"]) in str(error)
    assert error.action is action


async def test_usage_told_before_a_call_failed_is_recorded() -> None:
    used = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
    agent = Agent(model=provider(stream_of(delta(content="Half"), used, "{")))
    with pytest.raises(ModelError):
        await played(agent)
    (run,) = await events(agent, "run")
    assert (run["status"], run["usage"]["total_tokens"]) == ("error", 10)


# Answers of another kind


async def test_a_refusal_is_an_answer_and_its_words_are_kept() -> None:
    agent = Agent(model=provider(stream_of(delta(refusal="I will "), delta(refusal="not."))))
    streamed = await played(agent)
    assert [event.data["delta"] for event in streamed if event.kind == "text"] == ["I will ", "not."]
    assert streamed[-1] == StreamEvent("final", {"ok": True, "text": "I will not."})
    assert (await entries(agent, "message"))[1].payload == {"role": "assistant", "content": "I will not."}


async def test_reasoning_is_streamed_apart_and_kept() -> None:  # case 60
    agent = Agent(model=provider(stream_of(delta(reasoning_content="hm"))))
    streamed = await played(agent)
    assert streamed[1] == StreamEvent("reasoning", {"delta": "hm"})
    assert streamed[-1].data == {"ok": True, "text": ""}
    assert (await agent.tape("customer-42").read_messages())[1].reasoning == "hm"


async def test_calls_without_ids_get_them() -> None:
    asked = [{"index": n, "function": {"name": "ping", "arguments": "{}"}} for n in range(2)]
    replies = iter([stream_of(delta(tool_calls=asked)), stream_of(delta(content="ok"))])
    agent = Agent(model=provider(lambda request: next(replies)(request)), tools=[ping])
    assert await answered(agent) == "ok"
    (result,) = await entries(agent, "tool_result")
    assert result.payload == {"results": ["pong", "pong"], "call_ids": ["call_0", "call_1"]}


def ping() -> str:
    return "pong"


async def test_tools_that_the_provider_runs_go_with_the_options() -> None:
    model = ScriptedModel(call("ping"), say("ok"))
    search = republic.tools.NativeTool("chat", {"type": "web_search"})
    await played(Agent(model=model, tools=[ping]), options={"tools": [search]})
    assert [offered["type"] for offered in model.requests[0].tools] == ["function", "web_search"]


async def test_a_stream_left_early_closes_its_connection() -> None:
    closed = asyncio.Event()

    class Body(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield f"data: {json.dumps(delta(content='a'))}\n\n".encode()
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            closed.set()

    agent = Agent(model=provider(lambda _: httpx2.Response(200, stream=Body())))
    async with agent.run("Hello", tape="t") as stream:
        async for event in stream:
            if event.kind == "text":
                break
    assert closed.is_set()


# Fallbacks, retries and deadlines


async def test_another_model_is_asked_when_the_first_fails() -> None:
    first, second = ScriptedModel(fail(503, "down"), name="a"), ScriptedModel(say("Hi."), name="b")
    agent = Agent(model=first, fallbacks=[second])
    assert await answered(agent) == "Hi."
    assert [data["model"] for data in await events(agent, "run")] == ["scripted:b"]
    assert await entries(agent, "error") == []


async def test_the_error_of_the_last_model_is_raised() -> None:
    agent = Agent(model=ScriptedModel(fail(503, "down")), fallbacks=[ScriptedModel(fail(400, "no"), name="b")])
    with pytest.raises(ModelError, match="scripted:b answered HTTP 400"):
        await played(agent)
    assert [data["model"] for data in await events(agent, "run")] == ["scripted:b"]


@pytest.mark.parametrize("broken", [cut("Half"), garbage("Half")])
async def test_no_model_is_asked_again_after_a_first_token(broken: Any) -> None:
    first, second = ScriptedModel(broken, max_retries=2), ScriptedModel(say("never"))
    with pytest.raises(ModelError):
        await played(Agent(model=first, fallbacks=[second]))
    assert (len(first.requests), len(second.requests)) == (1, 0)


async def test_an_overflow_goes_to_no_other_model() -> None:
    too_long = fail(400, "prompt too long")
    second = ScriptedModel(say("never"))
    with pytest.raises(ContextOverflow):
        await played(Agent(model=ScriptedModel(too_long), fallbacks=[second]))
    assert second.requests == []


async def test_a_run_with_a_model_of_its_own_has_no_fallbacks() -> None:
    second = ScriptedModel(say("never"))
    with pytest.raises(ModelError):
        await played(Agent(fallbacks=[second]), model=ScriptedModel(fail(503, "down")))
    assert second.requests == []


@pytest.mark.parametrize("broken", [cut(), garbage()])
async def test_an_answer_that_breaks_off_before_its_first_token_is_asked_for_again(broken: Any) -> None:
    model = ScriptedModel(broken, broken, say("Hi."), max_retries=2)
    assert await answered(Agent(model=model)) == "Hi."
    once = ScriptedModel(broken, say("never"))
    with pytest.raises(ModelError):
        await played(Agent(model=once))
    assert len(once.requests) == 1


async def test_what_republic_repeats_is_not_repeated_once_more() -> None:
    model = ScriptedModel(*[fail(503, "down")] * 3, say("never"), max_retries=2)
    with pytest.raises(ModelError):
        await played(Agent(model=model))
    assert len(model.requests) == 3


async def test_a_handler_may_send_the_request_to_another_model() -> None:
    class Elsewhere(OpenAICompatible):
        name = "elsewhere-test"
        DEFAULT_API_BASE = "http://elsewhere.invalid/v1"

        def __init__(self, **options: Any) -> None:
            respond = stream_of(delta(content="From elsewhere."))
            client = httpx2.AsyncClient(transport=httpx2.MockTransport(respond), trust_env=False)
            super().__init__(**{**options, "http_client": client})

    republic.register_provider(Elsewhere)
    agent = Agent(model=ScriptedModel(say("never")))

    def redirect(event: LLMCallStarted) -> None:
        event.request = replace(event.request, model="elsewhere-test:m")

    agent.events.on(LLMCallStarted, redirect)
    assert await answered(agent) == "From elsewhere."
    assert [data["provider"] for data in await events(agent, "run")] == ["elsewhere-test"]


async def test_an_answer_has_its_deadline() -> None:
    agent = Agent(model=ScriptedModel(stall(60, after="one moment")), model_timeout_s=0.05)
    with pytest.raises(ModelError, match=r"did not finish its answer within 0\.05 s") as raised:
        await played(agent)
    assert raised.value.action is Action.RETRY
    assert [data["status"] for data in await events(agent, "loop.finish")] == ["error"]


async def test_a_silent_model_is_left_for_another_one() -> None:
    agent = Agent(model=ScriptedModel(stall(60)), fallbacks=[ScriptedModel(say("Hi."))], model_timeout_s=0.05)
    assert await answered(agent) == "Hi."


async def test_the_time_that_the_reader_takes_counts_for_no_deadline() -> None:
    agent = Agent(model=ScriptedModel(say("a b c")), model_timeout_s=0.2, run_timeout_s=0.2)
    began = time.monotonic()
    async with agent.run("Hello", tape="t") as stream:
        async for event in stream:
            if event.kind == "text":
                await wait_until(lambda: time.monotonic() > began + 0.3, "both deadlines have passed")
    assert event.kind == "final"


async def test_a_run_has_its_deadline_and_keeps_what_there_was() -> None:
    async def endless() -> None:
        await asyncio.Event().wait()

    agent = Agent(model=ScriptedModel(call("endless")), tools=[endless], run_timeout_s=0.05)
    with pytest.raises(TimedOut, match=r"did not end within 0\.05 s"):
        await played(agent)
    assert [data["status"] for data in await events(agent, "turn.receipt")] == ["failed"]
    (closed,) = await entries(agent, "tool_result")
    assert closed.meta["interrupted"] is True


@pytest.mark.parametrize("limits", [{"model_timeout_s": 0}, {"run_timeout_s": -1.0}])
def test_deadlines_are_more_than_nothing(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="more than 0 s"):
        Agent(**limits)
