"""A block: entries on their way to one tape, encoded, with what the tape's indexes need to know of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from bub_redis.tape.entry import StoredEntry, TapeEntry
from bub_redis.tape.info import usage_place


@dataclass(frozen=True)
class Block:
    """Entries in order. Places count from 0."""

    entries: tuple[StoredEntry, ...] = ()
    anchors: tuple[tuple[int, str], ...] = ()
    """Place and name of each anchor."""
    usage: int = -1
    """Place of the last entry that tells token usage; -1 without one."""

    @classmethod
    def of(cls, entries: Sequence[TapeEntry]) -> "Block":
        """The block of these entries. Raises InvalidInput for one that cannot be stored."""
        return cls(tuple(entry.encode() for entry in entries), anchor_places(entries), usage_place(entries))

    def __add__(self, later: "Block") -> "Block":
        """Both as one, `later` behind."""
        offset = len(self.entries)
        return Block(
            self.entries + later.entries,
            self.anchors + tuple((offset + place, name) for place, name in later.anchors),
            self.usage if later.usage < 0 else offset + later.usage,
        )

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self.entries)


def anchor_places(entries: Sequence[TapeEntry]) -> tuple[tuple[int, str], ...]:
    """Place, from 0, and name of each anchor among `entries`."""
    return tuple((place, name) for place, entry in enumerate(entries) if (name := entry.anchor_name) is not None)
