"""Views: the messages of one model call, derived from a tape's entries each time and never stored."""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import republic

from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.query import TapeQuery


class _LastAnchor:
    def __repr__(self) -> str:
        return "LAST_ANCHOR"


LAST_ANCHOR: Final = _LastAnchor()
"""Context starts after the last anchor, whatever its name; from the start where there is none."""

AnchorSelector = str | None | _LastAnchor
Selected = Sequence[Any]
ContextSelector = Callable[[Iterable[TapeEntry], "TapeContext"], "Selected | Awaitable[Selected]"]


@dataclass(frozen=True)
class TapeContext:
    """How a tape becomes the messages of a model call.

    `anchor` says where it starts: after the last anchor, after the latest one of a name, or at the beginning (None).
    `select(entries, context)`, sync or async, makes the messages; without it, message entries only. `state` is the
    run's own, shared by tools and prompt sections.
    """

    anchor: AnchorSelector = LAST_ANCHOR
    select: ContextSelector | None = None
    state: MutableMapping[str, Any] = field(default_factory=dict)

    def build_query(self, query: TapeQuery) -> TapeQuery:
        """The query that fetches what this context selects from."""
        if self.anchor is None:
            return query
        if isinstance(self.anchor, _LastAnchor):
            return query.last_anchor()
        return query.after_anchor(self.anchor)

    async def messages(self, entries: Iterable[TapeEntry]) -> list[Any]:
        """The messages made of `entries`. Entries with meta `context: false` never reach a selector."""
        visible = [entry for entry in entries if entry.meta.get("context") is not False]
        selected = (self.select or _message_entries)(visible, self)
        return list(await selected if inspect.isawaitable(selected) else selected)


def default_tape_context() -> TapeContext:
    """Replay what the agent loop recorded since the last anchor as Republic messages."""
    return TapeContext(select=_replay)


def _message_entries(entries: Iterable[TapeEntry], _context: TapeContext) -> list[republic.Message]:
    return [_message(entry.payload) for entry in entries if entry.kind == "message"]


def _replay(entries: Iterable[TapeEntry], _context: TapeContext) -> list[republic.Message]:
    """Anchors become assistant messages; message, tool_call and tool_result replay; every other kind is ignored."""
    replay = _Replay()
    for entry in entries:
        match entry.kind:
            case "anchor":
                replay.say(_anchor_message(entry.payload))
            case "message":
                replay.say(_message(entry.payload))
            case "tool_call":
                replay.call(entry.payload)
            case "tool_result":
                replay.answer(entry.payload)
    return replay.finished()


class _Replay:
    """Messages so far, and the calls that still wait for their results.

    No provider takes half a pair, so a call without a result is closed by the same synthetic one each time and a
    result without a call is dropped (cases 103, 104, 108). Ids are matched only among the calls still open, since
    models use an id twice (case 110); results that Bub wrote without ids pair by place (case 105).
    """

    def __init__(self) -> None:
        self._messages: list[republic.Message] = []
        self._open: dict[str, republic.ToolCall] = {}

    def say(self, message: republic.Message) -> None:
        self._close_open_calls()
        self._messages.append(message)

    def call(self, payload: Mapping[str, Any]) -> None:
        message = _call_message(payload)
        self.say(message)
        self._open = {call.id: call for call in message.tool_calls}

    def answer(self, payload: Mapping[str, Any]) -> None:
        results = payload.get("results")
        if not isinstance(results, list):
            return
        ids = payload.get("call_ids") or list(self._open)
        for call_id, result in zip(ids, results, strict=False):
            if call := self._open.pop(call_id, None):
                self._messages.append(_result_message(call, result))

    def finished(self) -> list[republic.Message]:
        self._close_open_calls()
        return self._messages

    def _close_open_calls(self) -> None:
        for call in self._open.values():
            self._messages.append(republic.tool(call, INTERRUPTED, is_error=True))
        self._open = {}


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

INTERRUPTED = "interrupted: this call was cut off before its result was known"
"""What stands in for the result of a call whose outcome nobody knows."""


def _anchor_message(payload: Mapping[str, Any]) -> republic.Message:
    state = json.dumps(payload.get("state"), ensure_ascii=False)
    return republic.assistant(_sendable(f"[Anchor created: {payload.get('name')}]: {state}"))


def _message(payload: Mapping[str, Any]) -> republic.Message:
    return _cleaned(republic.Message.from_dict(payload))


def _call_message(payload: Mapping[str, Any]) -> republic.Message:
    calls = [republic.ToolCall(c["id"], c["name"], c["arguments"], c.get("metadata", {})) for c in payload["calls"]]
    content = payload.get("content") or None
    data: dict[str, Any] = {"role": "assistant"} | ({} if content is None else {"content": content})
    parts = list(republic.Message.from_dict(data).parts)
    if reasoning := payload.get("reasoning"):
        parts.append(republic.Reasoning(reasoning))
    parts.extend(
        republic.ProviderData(item["api_format"], item["payload"]) for item in payload.get("provider_data") or ()
    )
    return _cleaned(republic.Message("assistant", tuple(parts), tool_calls=tuple(calls)))


def _result_message(call: republic.ToolCall, result: Any) -> republic.Message:
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return republic.tool(call, _sendable(text))


def _cleaned(message: republic.Message) -> republic.Message:
    parts = tuple(
        republic.Text(_sendable(part.text)) if isinstance(part, republic.Text) else part for part in message.parts
    )
    return republic.Message(message.role, parts, message.tool_calls, message.tool_call, message.is_error)


def _sendable(text: str) -> str:
    """`text` as a request can carry it: half of a cut character becomes U+FFFD, as UTF-8 has no form for it."""
    return _LONE_SURROGATE.sub("\ufffd", text)
