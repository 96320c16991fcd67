"""A model that plays a script through Republic's real provider path: only the network is replaced."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, overload

import httpx2
from republic import ChatModel
from republic.formats.chat import ChatFormat
from republic.providers import OpenAICompatible

from bub_redis.testing import wire
from bub_redis.testing.replies import Failure, Reply


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a model was sent, as it stood on the wire (Chat Completions)."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    options: dict[str, Any]
    """The rest of the body: `model`, `stream`, `temperature` and so on."""

    @property
    def prompt(self) -> str:
        """The text of the last user message; empty when there is none."""
        return next((_text(message) for message in reversed(self.messages) if message["role"] == "user"), "")

    @property
    def tool_results(self) -> list[str]:
        """The texts of the tool messages since the last user message; empty in a turn's first step."""
        results: list[str] = []
        for message in self.messages:
            if message["role"] == "user":
                results.clear()
            elif message["role"] == "tool":
                results.append(_text(message))
        return results


Script = Callable[[ModelRequest], Reply | Awaitable[Reply]]
"""A model as a function, sync or async, of what it is shown."""


class ScriptExhausted(AssertionError):
    """A model was asked more often than its script has replies."""


class ScriptedModel(ChatModel):
    """A Republic model without a network: `ScriptedModel(call("add", a=1, b=2), say("3"))`.

    Replies are given in the order of the requests, whoever sends them; where sessions share a model, or a
    turn may be tried twice, give one function instead: it decides by what the request shows. The model may be
    shared between tasks, entered with `async with` any number of times, and used in one event loop after
    another.
    """

    requests: list[ModelRequest]
    """Every request so far, retries included, in the order of their arrival."""

    @overload
    def __init__(self, script: Script, /, *, name: str = ..., delay_s: float = ..., max_retries: int = ...) -> None: ...

    @overload
    def __init__(self, *replies: Reply, name: str = ..., delay_s: float = ..., max_retries: int = ...) -> None: ...

    def __init__(
        self,
        *replies: Reply | Script,
        name: str = "scripted",
        delay_s: float = 0.0,
        max_retries: int = 0,
    ) -> None:
        """Make a model that waits `delay_s` seconds between two pieces of an answer.

        `max_retries` is how often Republic repeats a refused or failed request; it does so without a pause. Raises
        TypeError for a function that stands beside other replies.
        """
        self.requests = []
        self._delay_s = delay_s
        self._script = _script(replies)
        transport = httpx2.MockTransport(self._respond)
        provider = _InProcess(
            http_client=httpx2.AsyncClient(transport=transport, trust_env=False),
            max_retries=max_retries,
            retry_delay=0,
        )
        super().__init__(provider, name, ChatFormat())

    async def _respond(self, http: httpx2.Request) -> httpx2.Response:
        body = json.loads(http.content)
        request = ModelRequest(body.pop("messages"), body.pop("tools", []), body)
        self.requests.append(request)
        reply = self._script(request)
        if isinstance(reply, Awaitable):
            reply = await reply
        if isinstance(reply, Failure):
            return wire.failure(reply)
        if not body.get("stream"):
            return await wire.document(reply, self.name)
        return wire.stream(reply, self.name, self._delay_s if reply.delay_s is None else reply.delay_s)


class _InProcess(OpenAICompatible):
    name = "scripted"
    DEFAULT_API_BASE = "http://scripted.invalid/v1"
    MODELS_PATH = None

    async def close(self) -> None:
        """Stay usable: nothing is open, and the first task to leave must not end it for the others."""


def _script(replies: tuple[Reply | Script, ...]) -> Script:
    match replies:
        case (script,) if callable(script):
            return script
        case _:
            played = iter([_reply(reply) for reply in replies])

    def play(_request: ModelRequest) -> Reply:
        try:
            return next(played)
        except StopIteration:
            raise ScriptExhausted(f"the script has {len(replies)} replies and the model was asked once more") from None

    return play


def _reply(candidate: Reply | Script) -> Reply:
    if callable(candidate):
        raise TypeError("give either replies or one function, not both")
    return candidate


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content or () if part["type"] == "text")
