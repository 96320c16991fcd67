"""What a scripted model can answer: plain values, made by the functions below and never by hand.

An answer is a list of steps in the order they reach the reader; `wire` turns it into bytes.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One tool call of an answer."""

    name: str
    arguments: str
    """As the model writes them: JSON, unless the script wants it broken."""
    id: str | None
    """None: a fresh random one each time the answer is played, as a provider gives."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence in the middle of a stream."""

    seconds: float


class Fault(Enum):
    """How a stream that began well goes wrong."""

    CUT = auto()
    """The connection breaks."""
    GARBAGE = auto()
    """A chunk arrives that is not JSON."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response with status 200, step by step; a string is one piece of text."""

    steps: tuple[str | PlannedCall | Pause | Fault, ...]
    delay_s: float | None = None
    """Seconds between two pieces; None: the model's own `delay_s`."""
    usage: tuple[int, int] | None = None
    """Input and output tokens; None: the provider says nothing about usage, which is not zero."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A response with an error status."""

    status: int
    body: str
    headers: Mapping[str, str] = field(default_factory=dict)


Reply = Answer | Failure
"""What a script gives for one request."""


def say(
    text: str,
    *,
    chunks: int | None = None,
    delay_s: float | None = None,
    usage: tuple[int, int] | None = None,
) -> Answer:
    """Answer with text, streamed word by word or in `chunks` pieces of about one length.

    The pieces are `delay_s` seconds apart; `usage` is input and output tokens. Raises ValueError for `chunks` below 1.
    """
    return Answer(_pieces(text, chunks), delay_s, usage)


def call(tool_name: str, /, _id: str | None = None, _raw: str | None = None, **arguments: Any) -> Answer:
    """Answer with one tool call. `_raw` replaces the arguments' JSON, to play a model that writes it wrong.

    Raises TypeError for an argument that has no JSON.
    """
    raw = json.dumps(arguments, ensure_ascii=False) if _raw is None else _raw
    return Answer((PlannedCall(tool_name, raw, _id),))


def calls(*answers: Answer, text: str = "", usage: tuple[int, int] | None = None) -> Answer:
    """Answer with several tool calls at once, said `text` before them: `calls(call("a"), call("b", x=1))`."""
    return Answer(_pieces(text) + tuple(step for answer in answers for step in answer.steps), usage=usage)


def fail(status: int, body: str | Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Failure:
    """Refuse the request with an HTTP status; a mapping is sent as JSON."""
    return Failure(status, body if isinstance(body, str) else json.dumps(body), dict(headers or {}))


def cut(text: str = "") -> Answer:
    """Say `text`, then lose the connection."""
    return Answer((*_pieces(text), Fault.CUT))


def garbage(text: str = "") -> Answer:
    """Say `text`, then send a chunk that is not JSON."""
    return Answer((*_pieces(text), Fault.GARBAGE))


def stall(seconds: float, *, after: str = "", then: str = "") -> Answer:
    """Say `after`, keep silent for `seconds`, say `then` and finish."""
    return Answer((*_pieces(after), Pause(seconds), *_pieces(then)))


def _pieces(text: str, count: int | None = None) -> tuple[str, ...]:
    if count is None:
        return tuple(re.findall(r"\S+\s*|\s+", text))
    if count < 1:
        raise ValueError(f"chunks is {count}: a text has at least one")
    bounds = [len(text) * place // count for place in range(count + 1)]
    return tuple(text[start:end] for start, end in pairwise(bounds) if start < end)
