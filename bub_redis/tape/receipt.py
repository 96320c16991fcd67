"""Receipts: the last entry of every merge, and the chain of digests that ties it to all that came before.

The digest of a receipt is a SHA-256 over the previous receipt's digest and, in order, every main-tape entry up to the
one that the fork saw and that no earlier receipt covers (the last receipt included), then the merged block without its
own receipt. Everything goes in length-prefixed, `<bytes in decimal>:<bytes>`, the four stored fields of an entry in
their order, so that no two tapes have one digest and anybody can redo it from a plain export.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from bub_redis.tape.entry import StoredEntry, TapeEntry

RECEIPT_EVENT = "turn.receipt"

Status = Literal["completed", "failed", "cancelled"]


class Chain:
    """The running digest from one receipt to the next."""

    def __init__(self, previous_digest: str) -> None:
        self._hash = hashlib.sha256()
        self._feed(previous_digest.encode())

    def _feed(self, data: bytes) -> None:
        self._hash.update(b"%d:" % len(data))
        self._hash.update(data)

    def add(self, entries: Iterable[StoredEntry]) -> "Chain":
        """Take in entries as they are stored, in order; returns itself."""
        for entry in entries:
            for value in entry:
                self._feed(value)
        return self

    def copy(self) -> "Chain":
        """An independent chain that stands where this one stands."""
        twin = Chain("")
        twin._hash = self._hash.copy()
        return twin

    def hexdigest(self) -> str:
        """The digest so far: 64 hexadecimal digits."""
        return self._hash.hexdigest()


@dataclass(frozen=True)
class Receipt:
    """What a merge put on a tape. Callers keep it to prove later that the tape is what it was."""

    turn: str
    """The id of the turn, or of the run or fork of a library caller."""
    attempt: int
    """Which attempt of the turn merged; 1 for a library caller."""
    status: Status
    error: str | None
    steers: int
    """How many steering messages the turn used."""
    answer: int | None
    """The place of the answer in the block, from 0; None without one."""
    token: int
    """The fencing token of the grant under which the merge was made."""
    usage: Mapping[str, Any] | None
    """Tokens of the run, as recorded; None when the provider told none."""
    seen: int
    """The last entry that the fork saw of its parent."""
    entries: int
    """How many entries of the block stand before the receipt."""
    digest: str
    id: str = ""
    """The stream id of the receipt. Not in the stored entry: only the store knows it."""

    @property
    def last(self) -> int:
        """The number of the receipt's own entry: the last of the block."""
        return int(self.id.partition("-")[2])

    @property
    def first(self) -> int:
        """The number of the first entry of the block: a block has no gap."""
        return self.last - self.entries

    @property
    def answer_entry(self) -> int | None:
        """The number of the entry that holds the answer."""
        return None if self.answer is None else self.first + self.answer

    @property
    def unseen(self) -> range:
        """Numbers of what others appended after the fork opened and before its block: the next receipt covers them."""
        return range(self.seen + 1, self.first)

    def entry(self) -> TapeEntry:
        """The event that is stored: `turn.receipt`, never in a model's context."""
        data = asdict(self)
        del data["id"]
        return TapeEntry.event(RECEIPT_EVENT, data, context=False)

    def as_dict(self) -> dict[str, Any]:
        """The caller's copy as JSON, with first and last entry filled in."""
        return asdict(self) | {"first": self.first, "last": self.last}

    @classmethod
    def from_entry(cls, entry: TapeEntry, stream_id: str) -> "Receipt":
        """The receipt that an entry holds. Raises ValueError if it is none."""
        if entry.kind != "event" or entry.payload.get("name") != RECEIPT_EVENT:
            raise ValueError(f"entry {entry.id} is no receipt")
        return cls(**entry.payload["data"], id=stream_id)

    def placed(self, stream_id: str) -> "Receipt":
        """The same receipt at the place that the store gave it."""
        return replace(self, id=stream_id)


def broken_receipts(entries: Iterable[TapeEntry]) -> list[int]:
    """The numbers of the receipts on a whole tape whose digest does not match what stands before them.

    An edited entry breaks the first receipt that covers it. It takes an export of one generation, in order, from
    entry 1; a receipt kept elsewhere then proves the tape up to it.
    """
    broken: list[int] = []
    digest = ""
    uncovered: dict[int, StoredEntry] = {}
    for entry in entries:
        try:
            receipt = Receipt.from_entry(entry, f"0-{entry.id}")
        except (ValueError, TypeError, KeyError):
            receipt = None
        if receipt is not None:
            covered = [number for number in uncovered if number <= receipt.seen or number >= receipt.first]
            if Chain(digest).add(uncovered.pop(number) for number in covered).hexdigest() != receipt.digest:
                broken.append(entry.id)
            digest = receipt.digest
        uncovered[entry.id] = entry.encode()
    return broken
