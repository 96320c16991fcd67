"""Where a tape stands, as its fields in `state` tell it, and entries as a stream holds them."""

from collections.abc import Sequence

from bub_redis.errors import TapeBlocked
from bub_redis.tape.entry import StoredEntry
from bub_redis.tape.store import Head
from bub_redis.tape.stream_id import STREAM_ID

HEAD_FIELDS = ("generation", "last", "ms", "receipt", "digest", "usage", "anchor")
"""The fields of a tape in `state` that make its head, in the order in which `head_of` takes their values."""

FIELD_NAMES = list(map(str.encode, StoredEntry._fields))

FIRST_PAGE_ENTRIES = 64
"""How many entries of a slice are asked for at first."""

RawEntry = tuple[bytes, Sequence[bytes]]
"""A stream id, with names and values as the server sends them."""
Page = Sequence[RawEntry]


def head_of(values: Sequence[bytes | None]) -> Head:
    """The head that the values of HEAD_FIELDS make. Raises TapeBlocked for values that nobody of us wrote."""
    try:
        generation, last, last_ms = (int(value or 0) for value in values[:3])
        receipt, digest, usage, anchor = ((text or b"").decode() for text in values[3:])
        if not all(stream_id == "" or STREAM_ID.fullmatch(stream_id) for stream_id in (receipt, usage, anchor)):
            raise ValueError
    except ValueError:
        raise TapeBlocked("what says where a tape stands cannot be read; see `bub-redis tape repair`") from None
    return Head(generation, last, last_ms, receipt, digest, usage, anchor)


def stored_in(flat: Sequence[bytes]) -> StoredEntry | None:
    """The entry in a stream entry's names and values, as the server sends them; None for one that we did not write."""
    return StoredEntry._make(flat[1::2]) if flat[::2] == FIELD_NAMES else None


def names_and_values(stored: StoredEntry) -> list[bytes]:
    """An entry as XADD takes it."""
    return [part for field in zip(FIELD_NAMES, stored, strict=True) for part in field]
