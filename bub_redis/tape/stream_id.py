"""Ids of entries in a stream, `<server ms>-<entry number>`. Both parts only grow, so ids are in order as pairs."""

import re
from typing import NamedTuple

STREAM_ID = re.compile(r"\d{1,16}-\d{1,16}")
"""What is an id that we wrote. Numbers are exact in Lua up to 16 digits."""


class StreamId(NamedTuple):
    """The two parts of an id: ids are compared by them, and not as texts."""

    ms: int
    """When the server took the entry."""
    number: int
    """The entry's number in its tape, from 1; of frames and foreign entries, what tells those of one ms apart."""

    @classmethod
    def of(cls, text: str | bytes) -> "StreamId":
        """The parts of an id; (0, 0), before all others, of the empty one. Raises ValueError for what is no id."""
        if isinstance(text, bytes):
            text = text.decode()
        ms, _, number = text.partition("-")
        return cls(int(ms or 0), int(number or 0))


def entry_number(stream_id: bytes) -> int:
    """The number in an id as the server sent it: `StreamId.of(…).number`, for what is done with each entry read."""
    return int(stream_id.partition(b"-")[2])
