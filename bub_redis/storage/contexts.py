"""Contexts that this process has read, and where they began, so that they are read again together with a grant.

What is asked for is what the fork of the grant would ask for next: the entries behind the last anchor, as it was when
they were read before. Long and large contexts are left to be read page by page, while the session is renewed.
"""

from collections import OrderedDict
from dataclasses import replace
from typing import Any

from bub_redis.storage.connection import Command
from bub_redis.storage.heads import FIRST_PAGE_ENTRIES, Page
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape.store import Head

MOST_BYTES = 256 * 1024
"""How large the payloads of a context may be together."""
MOST_KNOWN = 10_000
"""Of so many tapes it is known; the context of another one takes a round trip of its own."""


class Contexts:
    """Where the contexts began that this process read last."""

    def __init__(self) -> None:
        self._anchors: OrderedDict[str, str] = OrderedDict()

    def anchor_of(self, tape: str) -> str:
        """The stream id of the anchor behind which the tape's context began; empty where it is not known, or large."""
        return self._anchors.get(tape, "")

    def note(self, tape: str, anchor: str, page: Page) -> None:
        """A context was read: `page` is what stands behind `anchor`, or the first `FIRST_PAGE_ENTRIES` of that."""
        size_bytes = sum(len(payload) for _, fields in page for payload in fields[3:4])
        self._anchors.pop(tape, None)
        if len(page) >= FIRST_PAGE_ENTRIES or size_bytes > MOST_BYTES:
            return
        self._anchors[tape] = anchor
        if len(self._anchors) > MOST_KNOWN:
            self._anchors.popitem(last=False)


def context_commands(keys: TapeKeys, anchor: str) -> list[Command]:
    """What reads the entries behind an anchor, and behind them the generation that they are of; nothing without one."""
    if not anchor:
        return []
    return [
        ("XRANGE", keys.tape, f"({anchor}", "+", "COUNT", FIRST_PAGE_ENTRIES),
        ("HGET", keys.state, *keys.fields("generation")),
    ]


def with_context(head: Head, anchor: str, page: Any, generation: Any) -> Head:
    """The head with its context, if that is what was read since: from its last anchor to its last entry, and no reset.

    The generation only grows: what was read before it, and behind the head, is of both.
    """
    if anchor != head.anchor or not isinstance(page, list) or generation != b"%d" % head.generation:
        return head
    if head.last_id == anchor:
        return replace(head, context=())
    last = head.last_id.encode()
    for place in range(len(page) - 1, -1, -1):
        # What stands behind the last entry was appended since.
        if page[place][0] == last:
            return replace(head, context=page[: place + 1])
    return head
