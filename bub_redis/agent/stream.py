"""What a run streams to its caller."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

StreamKind = Literal["text", "reasoning", "tool_call", "tool_result", "usage", "error", "final"]


@dataclass(frozen=True)
class StreamEvent:
    """One piece of a run, as it happens.

    | kind | data |
    |---|---|
    | text, reasoning | `delta`, a piece of what the model says |
    | usage | `usage`, the call's tokens (None when the provider told none), and `elapsed_seconds` |
    | tool_call | `tool_calls`, those of one response as `{id, name, arguments, metadata}`, before any runs |
    | tool_result | `tool_results` and `call_ids`, in the order of the calls |
    | final | the end of a step: `ok` with `text`, or with `tool_calls`, `tool_results` and `call_ids` |
    | error | `kind` and `message` of the error that is raised next |
    """

    kind: StreamKind
    data: Mapping[str, Any]


EventStream = AsyncGenerator[StreamEvent, None]
"""A run, driven by whoever iterates it.

The last `final`, or `error`, comes when all is recorded and, in a run that opened its own fork, merged.
"""
