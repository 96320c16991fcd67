"""Answers as a Chat Completions service writes them: a stream of server-sent events, or one JSON document."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2

from bub_redis.testing.replies import Answer, Failure, Fault, Pause, PlannedCall

_ARGUMENT_PIECE_CHARS = 16


def failure(reply: Failure) -> httpx2.Response:
    """The response of a service that refuses the request."""
    return httpx2.Response(reply.status, headers=dict(reply.headers), content=reply.body.encode())


def stream(answer: Answer, model: str, delay_s: float) -> httpx2.Response:
    """A response whose body arrives piece by piece, `delay_s` seconds apart."""
    return httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, stream=_EventStream(answer, model, delay_s)
    )


async def document(answer: Answer, model: str) -> httpx2.Response:
    """The whole answer at once, as a request that does not stream gets it; pauses are kept.

    Raises httpx2.RemoteProtocolError if the answer is cut.
    """
    for step in answer.steps:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
        elif step is Fault.CUT:
            raise _connection_lost()
    if Fault.GARBAGE in answer.steps:
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=b"{")
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(step for step in answer.steps if isinstance(step, str)) or None,
    }
    if calls := [_call(step) for step in answer.steps if isinstance(step, PlannedCall)]:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(answer)}
    body = _envelope("chat.completion", model) | {"choices": [choice]} | _usage(answer)
    return httpx2.Response(200, json=body)


class _EventStream(httpx2.AsyncByteStream):
    def __init__(self, answer: Answer, model: str, delay_s: float) -> None:
        self._answer = answer
        self._envelope = _envelope("chat.completion.chunk", model)
        self._delay_s = delay_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._choice({"role": "assistant", "content": ""})
        calls_begun = 0
        first = True
        for step in self._answer.steps:
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif step is Fault.CUT:
                raise _connection_lost()
            elif step is Fault.GARBAGE:
                yield b'data: {"choices": [\n\n'
            else:
                for delta in _deltas(step, calls_begun):
                    if not first:
                        # Also when it is 0: a real stream lets other tasks run between two pieces.
                        await asyncio.sleep(self._delay_s)
                    first = False
                    yield self._choice(delta)
                calls_begun += isinstance(step, PlannedCall)
        yield self._choice({}, _finish_reason(self._answer))
        if usage := _usage(self._answer):
            yield _event(self._envelope | {"choices": []} | usage)
        yield b"data: [DONE]\n\n"

    def _choice(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        return _event(self._envelope | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def _deltas(step: str | PlannedCall | Fault, index: int) -> Iterator[dict[str, Any]]:
    if isinstance(step, str):
        yield {"content": step}
    elif isinstance(step, PlannedCall):
        opening = _call(step)
        arguments = opening["function"].pop("arguments")
        opening["function"]["arguments"] = ""
        yield {"tool_calls": [{"index": index, **opening}]}
        for start in range(0, len(arguments), _ARGUMENT_PIECE_CHARS):
            piece = arguments[start : start + _ARGUMENT_PIECE_CHARS]
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _call(planned: PlannedCall) -> dict[str, Any]:
    call_id = planned.id or f"call_{uuid.uuid4().hex[:24]}"
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": planned.name, "arguments": planned.arguments},
    }


def _finish_reason(answer: Answer) -> str:
    return "tool_calls" if any(isinstance(step, PlannedCall) for step in answer.steps) else "stop"


def _usage(answer: Answer) -> dict[str, Any]:
    if answer.usage is None:
        return {}
    prompt, completion = answer.usage
    return {
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
    }


def _envelope(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": 0, "model": model}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _connection_lost() -> httpx2.RemoteProtocolError:
    return httpx2.RemoteProtocolError("the script cut the connection")
