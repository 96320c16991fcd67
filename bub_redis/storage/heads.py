"""Where a tape stands, as its fields in `state` tell it, and entries as a stream holds them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bub_redis.errors import TapeBlocked
from bub_redis.storage.connection import Command
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape.entry import StoredEntry
from bub_redis.tape.store import Head

HEAD_FIELDS = ("generation", "last", "ms", "receipt", "digest", "usage", "anchor")
"""The fields of a tape in `state` that make its head, in the order in which `head_of` takes their values."""

_NAMES = list(map(str.encode, StoredEntry._fields))

NEWEST_ENTRIES = 64
"""How many entries are read together with a head: most contexts begin within so many."""

Page = Sequence[tuple[bytes, Sequence[bytes]]]
"""Stream ids, with names and values as the server sends them."""


def head_of(values: Sequence[bytes | None]) -> Head:
    """The head that the values of HEAD_FIELDS make. Raises TapeBlocked for values that nobody of us wrote."""
    try:
        generation, last, last_ms = (int(value or 0) for value in values[:3])
        receipt, digest, usage, anchor = ((text or b"").decode() for text in values[3:])
    except ValueError:
        raise TapeBlocked("what says where a tape stands cannot be read; see `bub-redis tape repair`") from None
    return Head(generation, last, last_ms, receipt, digest, usage, anchor)


def newest_commands(keys: TapeKeys) -> list[Command]:
    """What reads a tape's newest entries, and behind them the generation that they are of."""
    return [
        ("XREVRANGE", keys.tape, "+", "-", "COUNT", NEWEST_ENTRIES),
        ("HGET", keys.state, *keys.fields("generation")),
    ]


def with_newest(head: Head, page: Page | Any, generation: Any) -> Head:
    """The head with what `newest_commands` read behind it; without, if the tape was reset meanwhile or not read."""
    if not isinstance(page, list) or generation != b"%d" % head.generation:
        return head
    last = head.last_id.encode()
    for place, (stream_id, _) in enumerate(page):
        if stream_id == last:
            # What stands before it in the page was appended since.
            return replace(head, newest=page[: None if not place else place - 1 : -1])
    return head


def stored_in(flat: Sequence[bytes]) -> StoredEntry | None:
    """The entry in a stream entry's names and values, as the server sends them; None for one that we did not write."""
    return StoredEntry._make(flat[1::2]) if flat[::2] == _NAMES else None
