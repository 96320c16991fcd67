"""What a fork holds of one tape: the parent as it was seen, and what was appended or reset since, in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bub_redis.tape.block import Block, anchor_places
from bub_redis.tape.entry import StoredEntry, TapeEntry
from bub_redis.tape.info import usage_place
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.store import Delta, Head


@dataclass
class Overlay:
    """One tape of a fork. Numbers of its entries are provisional until the merge."""

    tape: str
    head: Head
    """The parent as the fork sees it."""
    entries: list[TapeEntry] = field(default_factory=list)
    """What was appended, numbered as if nobody else wrote."""
    stored: list[StoredEntry] = field(default_factory=list)
    """The same, encoded."""
    opening: int | None = None
    """After a reset: how many entries the reset itself wrote. None while the parent is still seen."""
    remembered: tuple[TapeQuery, Head, list[TapeEntry]] | None = None
    """What was last asked of the parent, as of which moment, and its answer: each step asks the same again."""

    @property
    def changed(self) -> bool:
        """Whether there is anything to merge."""
        return bool(self.entries) or self.opening is not None

    def append(self, entries: Sequence[TapeEntry]) -> list[TapeEntry]:
        """Add entries and return them as stored. Raises InvalidInput with nothing added."""
        stored = [entry.encode() for entry in entries]
        first = (self.head.last if self.opening is None else 0) + len(self.entries) + 1
        decoded = [TapeEntry.encoded(first + place, value) for place, value in enumerate(stored)]
        self.stored += stored
        self.entries += decoded
        return decoded

    def advance(self, head: Head) -> None:
        """See the parent as of a later moment, at which it holds what this fork wrote ahead."""
        moved = head.last - self.head.last if self.opening is None else 0
        self.head = head
        self.entries = [replace(entry, id=entry.id + moved) for entry in self.entries]

    def clear(self) -> None:
        """Forget the parent and what was appended; what is appended next, until `opened`, belongs to the reset."""
        self.entries, self.stored, self.opening = [], [], 0

    def opened(self) -> None:
        """What was appended since `clear` is all that the reset itself writes."""
        self.opening = len(self.entries)

    def delta(self) -> Delta:
        """What the fork adds to this tape."""
        block = Block(tuple(self.stored), anchor_places(self.entries), usage_place(self.entries))
        return Delta(self.tape, self.head, block, self.opening)
