"""A run against a real OpenAI-compatible service: every byte goes over a socket."""

import asyncio
import contextlib
from typing import Any

import pytest
import republic

from bub_redis.agent import Agent
from bub_redis.errors import Action, ContextOverflow, ModelError
from tests.pure.openai_server import Scripted, calling, chunk, openai_server, refused, streamed
from tests.pure.runs import answered, entries, events, played, results


def model(url: str, **options: Any) -> republic.ChatModel:
    return republic.get_model(
        "openai:m", api_base=url, api_key="sk-test-123456", api_format="chat", **{"max_retries": 0, **options}
    )


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_text_streams_and_tools_are_called() -> None:
    async with (
        openai_server(calling("add", '{"a": 1, "b": 2}'), streamed("It ", "is 3.", usage=(15, 3))) as server,
        model(server.url) as m,
    ):
        agent = Agent(model=m, tools=[add], system_prompt="Be brief.")
        seen = await played(agent, "1 + 2?")
        assert [event.data["delta"] for event in seen if event.kind == "text"] == ["It ", "is 3."]
        assert await results(agent) == [3]
        assert [message["role"] for message in server.requests[1]["messages"]] == [
            "system",
            "user",
            "assistant",
            "tool",
        ]
        assert [data.get("usage", {}).get("input_tokens") for data in await events(agent, "run")] == [None, 15]


@pytest.mark.parametrize(
    "overflow",
    [
        refused(
            400,
            {
                "error": {
                    "message": "This model's maximum context length is 8192 tokens. However, your messages resulted "
                    "in 9000 tokens. Please reduce the length of the messages.",
                    "type": "invalid_request_error",
                    "code": "context_length_exceeded",
                }
            },
        ),
        refused(
            400,
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "prompt is too long: 208544 tokens > 200000 maximum",
                },
            },
        ),
        refused(
            400,
            {
                "error": {
                    "code": 400,
                    "message": "the request exceeds the available context size, try increasing it",
                    "type": "exceed_context_size_error",
                }
            },
        ),
    ],
    ids=["openai", "anthropic", "llama.cpp"],
)
async def test_an_overflow_in_the_words_of_a_provider_is_a_handoff(overflow: Scripted) -> None:
    """Cases 9, 47, 130 and 196."""
    async with openai_server(streamed("Hi."), overflow, streamed("Fine.")) as server, model(server.url) as m:
        agent = Agent(model=m)
        await played(agent, "Hello")
        assert await answered(agent, "How are you?") == "Fine."
        assert [message["content"] for message in server.requests[2]["messages"]] == ["How are you?"]
        assert "auto_handoff/context_overflow" in [entry.anchor_name for entry in await entries(agent, "anchor")]


async def test_an_overflow_that_comes_inside_a_stream_is_a_handoff_too() -> None:
    """Case 200."""
    error = b'data: {"error": {"message": "prompt is too long: 9000 tokens > 8000 maximum", "code": 503}}\n\n'
    async with (
        openai_server(streamed("Hi."), Scripted([error]), streamed("Fine.")) as server,
        model(server.url) as m,
    ):
        agent = Agent(model=m)
        await played(agent, "Hello")
        assert await answered(agent, "How are you?") == "Fine."


async def test_a_second_overflow_is_raised() -> None:
    overflow = refused(413, "<html>Request Entity Too Large</html>")
    async with openai_server(streamed("Hi."), overflow, overflow) as server, model(server.url) as m:
        agent = Agent(model=m)
        await played(agent, "Hello")
        with pytest.raises(ContextOverflow):
            await played(agent, "How are you?")
        assert len(server.requests) == 3


async def test_a_busy_service_is_asked_again_when_it_says() -> None:
    """Case 201."""
    busy = refused(429, {"error": {"message": "too many tokens per minute"}}, retry_after_ms="1")
    async with openai_server(busy, streamed("Hi.")) as server, model(server.url, max_retries=1, retry_delay=60) as m:
        assert await answered(Agent(model=m)) == "Hi."
        assert len(server.requests) == 2


async def test_a_busy_service_that_stays_busy_is_no_overflow() -> None:
    """Case 192."""
    busy = refused(429, {"error": {"message": "You have exceeded the token rate limit of your tier."}})
    async with openai_server(busy) as server, model(server.url) as m:
        with pytest.raises(ModelError, match="HTTP 429") as raised:
            await played(Agent(model=m))
        assert not isinstance(raised.value, ContextOverflow)
        assert raised.value.action is Action.RETRY


async def test_a_broken_service_is_left_for_another() -> None:
    async with (
        openai_server(refused(500, "down")) as broken,
        openai_server(streamed("Hi.")) as working,
        model(broken.url) as first,
        model(working.url) as second,
    ):
        assert await answered(Agent(model=first, fallbacks=[second])) == "Hi."


@pytest.mark.parametrize(
    "broken",
    [
        Scripted([chunk({"content": "Half"})], whole=False),
        Scripted([chunk({"content": "Half"})]),
        Scripted([chunk({"content": "Half"}), b'data: {"choices": [\n\n']),
        Scripted([chunk({"content": "Half"}), b'data: {"choices": 5}\n\n']),
    ],
    ids=["cut", "without its end", "half a chunk", "another shape"],
)
async def test_an_answer_that_breaks_off_is_an_error(broken: Scripted) -> None:
    async with openai_server(broken, streamed("never")) as server, model(server.url, max_retries=2) as m:
        agent = Agent(model=m)
        with pytest.raises(ModelError) as raised:
            await played(agent)
        assert raised.value.action is Action.RETRY
        assert len(server.requests) == 1
        assert [entry.payload["role"] for entry in await entries(agent, "message")] == ["user"]


async def test_an_answer_that_breaks_off_before_its_first_token_is_asked_for_again() -> None:
    async with (
        openai_server(Scripted([], whole=False), streamed("Hi.")) as server,
        model(server.url, max_retries=1, retry_delay=0) as m,
    ):
        assert await answered(Agent(model=m)) == "Hi."


async def test_a_service_that_falls_silent_is_given_up() -> None:
    async with openai_server(Scripted([chunk({"content": "Half"}), None])) as server, model(server.url) as m:
        with pytest.raises(ModelError, match=r"within 0\.2 s"):
            await played(Agent(model=m, model_timeout_s=0.2))


async def test_a_cancel_closes_the_connection() -> None:
    async with openai_server(Scripted([chunk({"content": "Half"}), None])) as server, model(server.url) as m:
        agent, began = Agent(model=m), asyncio.Event()

        async def run() -> None:
            async with agent.run("Hello", tape="t") as stream:
                async for event in stream:
                    if event.kind == "text":
                        began.set()

        running = asyncio.create_task(run())
        await began.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    # The server leaves its block only when its connections are closed.
