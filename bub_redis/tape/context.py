"""Views: the messages of one model call, derived from a tape's entries each time and never stored."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import republic

from bub_redis.errors import NotFound
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.openai import OpenAIMessages
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.replay import RepublicMessages, replayed


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

    async def entries(self, query: TapeQuery) -> list[TapeEntry]:
        """What this context selects from: the entries since where it starts, read at once.

        A tape without any anchor is read from its start (case 82). Raises NotFound if the context names an anchor that
        is missing, Outage if the store does not answer.
        """
        asked = self.build_query(query)
        try:
            return await asked.all()
        except NotFound:
            if self.anchor is not LAST_ANCHOR:
                raise
            return await asked.without_anchor().all()

    async def messages(self, entries: Iterable[TapeEntry]) -> list[Any]:
        """The messages made of `entries`.

        Entries with meta `context: false` never reach a selector, and what a handoff entered again only where the
        first time is not among the entries: so every view holds a prompt once.
        """
        visible = _once([entry for entry in entries if entry.meta.get("context") is not False])
        selected = (self.select or _message_entries)(visible, self)
        return list(await selected if inspect.isawaitable(selected) else selected)


def default_tape_context() -> TapeContext:
    """Replay what was recorded since the last anchor as Republic messages: texts, calls, results, reasoning, media.

    An anchor that another query selects is an assistant message.
    """
    return TapeContext(select=_republic_messages)


def openai_messages() -> TapeContext:
    """Replay what was recorded since the last anchor as Chat Completions dicts, for a client of one's own.

    An anchor that another query selects is an assistant message `[Anchor created: <name>]: <state>`, a message its
    payload, a tool_call an assistant message with `content` and `tool_calls`, and a tool_result one `tool` message
    for each result. Call ids that come again are renamed, since services want them unique (case 110).
    """
    return TapeContext(select=_openai_messages)


def _message_entries(entries: Iterable[TapeEntry], _context: TapeContext) -> list[republic.Message]:
    return replayed((entry for entry in entries if entry.kind == "message"), RepublicMessages())


def _republic_messages(entries: Iterable[TapeEntry], _context: TapeContext) -> list[republic.Message]:
    return replayed(entries, RepublicMessages())


def _openai_messages(entries: Iterable[TapeEntry], _context: TapeContext) -> list[dict[str, Any]]:
    return replayed(entries, OpenAIMessages(), unique_ids=True)


def _once(entries: list[TapeEntry]) -> list[TapeEntry]:
    """The entries without those that repeat one among them: marked `retry_of` the run of the other (case 166)."""
    if not any("retry_of" in entry.meta for entry in entries):
        return entries
    firsts = [
        (entry.meta.get("run_id"), entry.payload)
        for entry in entries
        if entry.kind == "message" and "retry_of" not in entry.meta
    ]
    kept = []
    for entry in entries:
        again = (entry.meta.get("retry_of"), entry.payload)
        if "retry_of" in entry.meta and again in firsts:
            firsts.remove(again)
        else:
            kept.append(entry)
    return kept
