"""What a run streams to its caller."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import republic

StreamKind = Literal[
    "step", "text", "reasoning", "tool_call", "tool_result", "usage", "steered", "handoff", "error", "final"
]


@dataclass(frozen=True)
class StreamEvent:
    """One piece of a run, as it happens.

    | kind | data |
    |---|---|
    | step | `step`, its number, from 1: what follows belongs to it |
    | steered | `messages`, the contents of steering messages that were taken |
    | text, reasoning | `delta`, a piece of what the model says |
    | usage | `usage`, the call's tokens (None when the provider told none), and `elapsed_seconds` |
    | tool_call | `tool_calls`, those of one response as `{id, name, arguments, metadata}`, before any runs |
    | tool_result | `tool_results` and `call_ids`, in the order of the calls |
    | final | the end of a step: `ok` with `text`, or with `tool_calls`, `tool_results` and `call_ids` |
    | handoff | `name` and `state` of an anchor that the run set by itself: it goes on in a new context |
    | error | `kind` and `message` of the error that is raised next |
    """

    kind: StreamKind
    data: Mapping[str, Any]


def told_answer(message: republic.Message) -> list[StreamEvent]:
    """What is streamed of a whole response: its text in one piece, then its calls."""
    told = [StreamEvent("text", {"delta": message.text})] if message.text else []
    return [*told, StreamEvent("tool_call", calls_data(message))] if message.tool_calls else told


def calls_data(message: republic.Message) -> dict[str, Any]:
    """The calls of a response, as `tool_call` and `final` tell them."""
    return {"tool_calls": [asdict(call) for call in message.tool_calls]}


EventStream = AsyncGenerator[StreamEvent, None]
"""A run, driven by whoever iterates it.

The last `final`, or `error`, comes when all is recorded and, in a run that opened its own fork, merged.
"""
