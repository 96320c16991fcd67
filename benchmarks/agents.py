"""Agents for the workers of the benchmarks. Their models cost as little as a model can."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from republic import ChatModel, Response, TokenUsage, assistant
from republic.events import Completed, Event, TextDelta, UsageDelta
from republic.formats.chat import ChatFormat
from republic.providers import OpenAICompatible

from bub_redis.agent import Agent
from bub_redis.testing import ModelRequest, Reply, ScriptedModel, say

DELTAS = 50
DELTA_S = 0.2
_ANSWER = "Your order left the house."


class _Provider(OpenAICompatible):
    name = "benchmark"
    DEFAULT_API_BASE = "http://benchmark.invalid/v1"
    MODELS_PATH = None

    async def close(self) -> None:
        """Stay usable for the other turns."""


class _AtOnce(ChatModel):
    """A model that costs nothing: no request and no stream to read, only the events of an answer."""

    def __init__(self) -> None:
        super().__init__(_Provider(http_client=httpx2.AsyncClient(trust_env=False)), "at-once", ChatFormat())
        usage = TokenUsage(input_tokens=120, output_tokens=12)
        response: Response[Any] = Response(assistant(_ANSWER), usage, finish_reason="stop")
        self._events: tuple[Event, ...] = (TextDelta(_ANSWER), UsageDelta(usage), Completed(response))

    @asynccontextmanager
    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[Event]]:  # type: ignore[override]
        """The answer, whatever was asked."""
        yield self._answer()

    async def _answer(self) -> AsyncIterator[Event]:
        for event in self._events:
            yield event


at_once = Agent(model=_AtOnce(), name="at-once")
"""Answers at once, in one piece."""


def _respond_at_once(_request: ModelRequest) -> Reply:
    # What a model was asked is kept by it, for tests; a worker that runs for hours would hold it all.
    _scripted.requests.clear()
    return say(_ANSWER, chunks=1, usage=(120, 12))


_scripted = ScriptedModel(_respond_at_once)
over_client = Agent(model=_scripted, name="over-client")
"""The same over Republic's own client: a request is made and a stream of events read, all in the process."""


def _slowly(_request: ModelRequest) -> Reply:
    return say("word " * 1200, chunks=600, delay_s=0.1)


slowly = Agent(model=ScriptedModel(_slowly), name="slowly")
"""Answers for a minute, ten pieces a second."""


class _Ticking(httpx2.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        began = time.monotonic()
        for number in range(DELTAS):
            await asyncio.sleep(max(0.0, began + number * DELTA_S - time.monotonic()))
            yield _event(f"{time.monotonic_ns()} ")
        yield _event("", "stop")
        yield b"data: [DONE]\n\n"


def _event(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    body = {"id": "clock", "object": "chat.completion.chunk", "created": 0, "model": "clock", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _respond(_request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=_Ticking())


def _clock_model() -> ChatModel:
    transport = httpx2.MockTransport(_respond)
    provider = _Provider(http_client=httpx2.AsyncClient(transport=transport, trust_env=False), max_retries=0)
    return ChatModel(provider, "clock", ChatFormat())


clock = Agent(model=_clock_model(), name="clock")
"""Says, five times a second for five seconds, when it says it: the machine's monotonic clock in ns."""
