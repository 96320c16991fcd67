"""Replay: entries in, the messages of a model call out, with every call answered and every answer asked for.

No provider takes half a pair. A call without a result gets a synthetic one and a result without a call is dropped, the
same way each time, so that prompt caches hold; the stored entries stay as they are (cases 103, 104, 108, 157 to 159).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import republic

from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.messages import (
    CALLS,
    Part,
    anchor_text,
    content_parts,
    result_parts,
    stored_calls,
    stored_message,
    whole,
)

INTERRUPTED = "interrupted: this call was cut off before its result was known"
"""What stands in for the result of a call whose outcome nobody knows."""

_ENDINGS = frozenset({"stop_reason", "stopReason", "finish_reason", "status"})
"""Where a message says how it ended."""
_CUT_OFF = frozenset({"error", "aborted"})
"""How an assistant message ended that never was an answer (case 116)."""
_LOOKED_AT = _ENDINGS | CALLS
"""What a plain answer has nothing of."""

M = TypeVar("M")
I_contra = TypeVar("I_contra", contravariant=True)
M_co = TypeVar("M_co", covariant=True)


class Rendering(Protocol[I_contra, M_co]):
    """How items become messages of one format."""

    def message(self, item: I_contra, calls: Sequence[republic.ToolCall]) -> M_co | None:
        """A message that asks for these calls; None if there is nothing to send."""
        ...

    def result(self, call: republic.ToolCall, result: Any) -> M_co:
        """The result of a call."""
        ...

    def interrupted(self, call: republic.ToolCall) -> M_co:
        """What stands in for a result that there is not."""
        ...


@dataclass
class _Asked(Generic[M]):
    item: M
    calls: list[republic.ToolCall]
    results: dict[int, Any] = field(default_factory=dict)

    def place_of(self, call_id: str) -> int | None:
        """The call of that id that has no result yet."""
        places = (place for place, call in enumerate(self.calls) if call.id == call_id and place not in self.results)
        return next(places, None)


class Pairing(Generic[I_contra, M]):
    """Messages so far, and the last ones that ask for calls, which wait for results until something else is said.

    Ids count only among the calls that wait, the latest first: models use an id twice (case 110), and one from before
    an anchor means nothing after it (case 160). Results without ids, Bub's, pair by place (case 105).
    """

    def __init__(self, rendering: Rendering[I_contra, M], *, unique_ids: bool) -> None:
        self._rendering = rendering
        self._unique_ids = unique_ids
        self._messages: list[M] = []
        self._asked: list[_Asked[I_contra]] = []
        self._ids: set[str] = set()

    def say(self, item: I_contra) -> None:
        """A message without calls; calls that still wait get no result any more."""
        if self._asked:
            self._settle()
        if (message := self._rendering.message(item, ())) is not None:
            self._messages.append(message)

    def ask(self, item: I_contra, calls: Sequence[republic.ToolCall]) -> None:
        """A message that asks for calls. Those of the messages right before it go on waiting."""
        self._asked.append(_Asked(item, list(calls)))

    def drop(self) -> None:
        """Something was said that is not shown."""
        self._settle()

    def answer(self, call_id: str, result: Any) -> None:
        """The result of the call of that id, if one waits."""
        for asked in reversed(self._asked):
            if (place := asked.place_of(call_id)) is not None:
                asked.results[place] = result
                return

    def answer_in_order(self, results: Iterable[Any], name: str | None = None) -> None:
        """Results of the calls that wait, by place; only of those of one tool if it is named."""
        waiting = (
            (asked, place)
            for asked in self._asked
            for place, call in enumerate(asked.calls)
            if place not in asked.results and (name is None or call.name == name)
        )
        for (asked, place), result in zip(list(waiting), results, strict=False):
            asked.results[place] = result

    def finished(self) -> list[M]:
        """All messages."""
        self._settle()
        return self._messages

    def _settle(self) -> None:
        for asked in self._asked:
            calls = [self._named(call) for call in asked.calls]
            if (message := self._rendering.message(asked.item, calls)) is not None:
                self._messages.append(message)
            for place, call in enumerate(calls):
                known = place in asked.results
                self._messages.append(
                    self._rendering.result(call, asked.results[place]) if known else self._rendering.interrupted(call)
                )
        self._asked.clear()

    def _named(self, call: republic.ToolCall) -> republic.ToolCall:
        """The call with an id, and, where they must be, with one that no call before it has."""
        call_id = call.id or f"call_{len(self._ids)}"
        if self._unique_ids:
            again = 1
            while call_id in self._ids:
                again += 1
                call_id = f"{call.id or 'call'}_{again}"
        self._ids.add(call_id)
        return call if call_id == call.id else replace(call, id=call_id)


def replayed(
    entries: Iterable[TapeEntry], rendering: Rendering[Mapping[str, Any], M], *, unique_ids: bool = False
) -> list[M]:
    """Anchors, messages, calls and results as messages of one format; every other kind is ignored (case 43)."""
    pairing = Pairing(rendering, unique_ids=unique_ids)
    for entry in entries:
        match entry.kind:
            case "anchor":
                pairing.say({"role": "assistant", "content": anchor_text(entry.payload)})
            case "message":
                _read_message(pairing, entry.payload)
            case "tool_call":
                payload = entry.payload
                _read_asking(pairing, {"role": "assistant", **payload, "tool_calls": payload.get("calls")})
            case "tool_result":
                _read_results(pairing, entry.payload)
    return pairing.finished()


def _read_message(pairing: Pairing[Mapping[str, Any], M], payload: Mapping[str, Any]) -> None:
    match payload.get("role"):
        case "tool":
            announced = payload.get("tool_call")
            call_id = announced.get("id") if isinstance(announced, dict) else payload.get("tool_call_id")
            pairing.answer(call_id if isinstance(call_id, str) else "", _Content(payload.get("content")))
        case "function":
            name = payload.get("name")
            pairing.answer_in_order([_Content(payload.get("content"))], name if isinstance(name, str) else None)
        case "assistant":
            _read_asking(pairing, payload)
        case _:
            pairing.say(payload)


def _read_asking(pairing: Pairing[Mapping[str, Any], M], payload: Mapping[str, Any]) -> None:
    if _LOOKED_AT.isdisjoint(payload):
        pairing.say(payload)
    elif not _ENDINGS.isdisjoint(payload) and _was_cut_off(payload):
        pairing.drop()
    elif calls := stored_calls(payload):
        pairing.ask(payload, calls)
    else:
        pairing.say(payload)


def _was_cut_off(payload: Mapping[str, Any]) -> bool:
    endings = (payload.get(key) for key in _ENDINGS)
    return any(isinstance(ending, str) and ending in _CUT_OFF for ending in endings)


def _read_results(pairing: Pairing[Mapping[str, Any], M], payload: Mapping[str, Any]) -> None:
    results, call_ids = payload.get("results"), payload.get("call_ids")
    if not isinstance(results, list):
        return
    if not isinstance(call_ids, list) or not call_ids:
        pairing.answer_in_order(results)
        return
    for call_id, result in zip(call_ids, results, strict=False):
        if isinstance(call_id, str):
            pairing.answer(call_id, result)


def open_call_ids(entries: Iterable[TapeEntry]) -> list[str]:
    """The ids of the calls among `entries` that have no result there, in order."""
    waiting: list[str] = []
    for entry in entries:
        if entry.kind == "tool_call":
            waiting += [call.id for call in stored_calls(entry.payload) if call.id]
        elif entry.kind == "tool_result" and isinstance(results := entry.payload.get("results"), list):
            call_ids = entry.payload.get("call_ids")
            answered = call_ids if isinstance(call_ids, list) and call_ids else waiting[: len(results)]
            for call_id in answered:
                if call_id in waiting:
                    waiting.remove(call_id)
    return waiting


@dataclass(frozen=True)
class _Content:
    """A result that was recorded as the content of a message, and not as what a tool returned."""

    content: Any

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(content_parts(self.content)) or (republic.Text(""),)


class RepublicMessages:
    """Payloads as Republic messages."""

    def message(self, item: Mapping[str, Any], calls: Sequence[republic.ToolCall]) -> republic.Message | None:
        """The message; None if it holds nothing, which providers refuse (case 113)."""
        message = stored_message(item, calls)
        return message if message.parts or message.tool_calls else None

    def result(self, call: republic.ToolCall, result: Any) -> republic.Message:
        """The tool message."""
        parts = result.parts if isinstance(result, _Content) else result_parts(result)
        return republic.Message("tool", parts, tool_call=call)

    def interrupted(self, call: republic.ToolCall) -> republic.Message:
        """The tool message that says so, marked as an error."""
        return republic.tool(call, INTERRUPTED, is_error=True)


class _Wire:
    """Republic messages as they are, with the calls and the texts that can be sent."""

    def message(self, item: republic.Message, calls: Sequence[republic.ToolCall]) -> republic.Message | None:
        if item.role == "assistant" and not item.parts and not calls:
            return None
        return _whole_message(item if item.tool_calls == tuple(calls) else replace(item, tool_calls=tuple(calls)))

    def result(self, call: republic.ToolCall, result: republic.Message) -> republic.Message:
        return _whole_message(result if result.tool_call == call else replace(result, tool_call=call))

    def interrupted(self, call: republic.ToolCall) -> republic.Message:
        return republic.tool(call, INTERRUPTED, is_error=True)


def sendable(messages: Iterable[Any]) -> list[republic.Message]:
    """`messages` as a provider takes them, whoever selected or rewrote them: the last look before they are sent (159).

    Texts are user messages and dicts are read like stored messages. Pairs are repaired, ids that come again are
    renamed (case 110), half characters replaced, and messages that hold nothing left out.
    """
    pairing = Pairing(_Wire(), unique_ids=True)
    for candidate in messages:
        message = _republic_message(candidate)
        if message.tool_call is not None:
            pairing.answer(message.tool_call.id, message)
        elif message.tool_calls:
            pairing.ask(message, message.tool_calls)
        else:
            pairing.say(message)
    return pairing.finished()


def _republic_message(candidate: Any) -> republic.Message:
    if isinstance(candidate, republic.Message):
        return candidate
    if not isinstance(candidate, Mapping):
        return republic.user(str(candidate))
    call_id = candidate.get("tool_call_id")
    if candidate.get("role") == "tool" and isinstance(call_id, str):
        call = republic.ToolCall(call_id, "", "{}")
        return republic.Message("tool", _Content(candidate.get("content")).parts, tool_call=call)
    return stored_message(candidate)


def _whole_message(message: republic.Message) -> republic.Message:
    if all(not isinstance(part, republic.Text) or whole(part.text) is part.text for part in message.parts):
        return message
    parts = (replace(p, text=whole(p.text)) if isinstance(p, republic.Text) else p for p in message.parts)
    return replace(message, parts=tuple(parts))


def message_text_chars(messages: Iterable[Any]) -> int:
    """How many characters of text the messages have, about: calls and results included, media left out."""
    chars = 0
    for message in messages:
        if isinstance(message, republic.Message):
            chars += len(message.text) + sum(len(call.arguments) for call in message.tool_calls)
        else:
            chars += len(str(message))
    return chars
