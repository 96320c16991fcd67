"""Receipts: the last entry of every merge, and the chain of digests that ties it to all that came before.

The digest of a receipt is a SHA-256 over the previous receipt's digest and, in order, every main-tape entry up to the
one that the fork saw and that no earlier receipt covers (the last receipt included), then the merged block without its
own receipt. After a reset it goes on from the receipt that the event `tape.reset` names. Everything goes in
length-prefixed, `<bytes in decimal>:<bytes>`, the four stored fields of an entry in their order, so that no two tapes
have one digest and anybody can redo it from a plain export.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from bub_redis.tape.entry import StoredEntry, TapeEntry
from bub_redis.tape.records import decode_record
from bub_redis.tape.stream_id import StreamId

RECEIPT_EVENT = "turn.receipt"
RESET_EVENT = "tape.reset"
LOST_TAIL_EVENT = "tape.tail_lost"
"""Recorded by the first turn after a tape lost its end: its server went back to an older copy."""

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
        for kind, payload, meta, date in entries:
            # Each field as `_feed` takes it, in one call: four times less to do for a turn of many entries.
            self._hash.update(
                b"%d:%b%d:%b%d:%b%d:%b" % (len(kind), kind, len(payload), payload, len(meta), meta, len(date), date)
            )
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
        return StreamId.of(self.id).number

    @property
    def first(self) -> int:
        """The number of the first entry of the block: a block has no gap."""
        return self.last - self.entries

    @property
    def first_id(self) -> str:
        """The stream id of the first entry: all of a block have one ms."""
        return f"{StreamId.of(self.id).ms}-{self.first}"

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
        data = {name: value for name, value in vars(self).items() if name != "id"}
        return TapeEntry.event(RECEIPT_EVENT, data, context=False)

    def as_dict(self) -> dict[str, Any]:
        """The caller's copy as JSON, with first and last entry filled in; `usage` is the receipt's own."""
        return {**vars(self), "first": self.first, "last": self.last}

    @classmethod
    def from_entry(cls, entry: TapeEntry, stream_id: str) -> "Receipt":
        """The receipt that an entry holds. Raises ValueError if it is none."""
        if entry.kind != "event" or entry.payload.get("name") != RECEIPT_EVENT:
            raise ValueError(f"entry {entry.id} is no receipt")
        data = entry.payload["data"]
        if not _is_well_formed(data):
            raise ValueError(f"entry {entry.id} is no receipt of ours")
        return cls(**data, id=stream_id)

    def placed(self, stream_id: str) -> "Receipt":
        """The same receipt at the place that the store gave it."""
        return replace(self, id=stream_id)


_NUMBERS = ("attempt", "steers", "token", "seen", "entries")
LARGEST_NUMBER = 2**53
"""Numbers and moments beyond it are nobody's: scripts count in floating point."""
DIGEST = re.compile(r"[0-9a-f]{64}")


def _is_well_formed(data: Any) -> bool:
    """Whether what is named a receipt has the fields of one: an event of any name may be appended by anybody."""
    return (
        isinstance(data, dict)
        and isinstance(data.get("turn"), str)
        and data.get("status") in ("completed", "failed", "cancelled")
        and all(type(data.get(name)) is int and 0 <= data[name] < LARGEST_NUMBER for name in _NUMBERS)
        and (data.get("answer") is None or type(data["answer"]) is int)
        and isinstance(data.get("digest"), str)
        and DIGEST.fullmatch(data["digest"]) is not None
    )


def receipt_in(entry: TapeEntry) -> Receipt | None:
    """The receipt that an entry holds, with 0 for the ms of its stream id; None for any other entry."""
    try:
        return Receipt.from_entry(entry, f"0-{entry.id}")
    except (ValueError, TypeError, KeyError):
        return None


def broken_receipts(entries: Iterable[TapeEntry]) -> list[int]:
    """The numbers of the receipts on a whole tape whose digest does not match what stands before them.

    An edited entry breaks the first receipt that covers it. It takes an export of one generation, in order, from
    entry 1; a receipt kept elsewhere then proves the tape up to it.
    """
    audit = _Audit()
    for entry in entries:
        audit.add(entry)
    return audit.broken


@dataclass(frozen=True)
class Verification:
    """What the receipts in an export prove."""

    entries: int
    receipts: int
    broken: tuple[int, ...]
    """Numbers of the receipts that do not match what stands before them."""
    misplaced: tuple[int, ...]
    """Numbers that do not follow on the entry before: something is missing, doubled or out of order."""
    unreadable: int
    """Lines that hold no entry."""
    uncovered: int
    """Entries that no receipt proves: the last receipt, and what came behind or beside it."""
    begins_with: str
    """The digest with which the chain begins: the last one of the generation before, empty in the first."""
    digest: str
    """The digest of the last receipt: compare it with the one that was kept elsewhere. Empty without a receipt."""
    lost_tails: tuple[int, ...]
    """Numbers of the events that tell where the tape once lost its end. What is there is proved all the same."""

    @property
    def intact(self) -> bool:
        """Whether every receipt matches and nothing is missing, doubled or unreadable."""
        return not (self.broken or self.misplaced or self.unreadable)


def verify_export(lines: Iterable[bytes]) -> Verification:
    """Redo the receipts of a tape from a plain export: an entry per line, as archives and `tape show --json` have it.

    Reads line by line; memory grows only with what no receipt covers yet. The export is one generation of the tape from
    entry 1; a chain that began earlier goes on from the digest that the event `tape.reset` names.
    """
    audit = _Audit()
    unreadable = 0
    for line in lines:
        if record := decode_record(line):
            audit.add(record.entry)
        elif not line.isspace():
            unreadable += 1
    return audit.outcome(unreadable)


async def verify_entries(entries: AsyncIterator[TapeEntry]) -> Verification:
    """Redo the receipts of one whole generation of a tape, given in order, as `verify_export` does from an export."""
    audit = _Audit()
    async for entry in entries:
        audit.add(entry)
    return audit.outcome(0)


class _Audit:
    """Redoes the chain of digests, entry by entry."""

    def __init__(self) -> None:
        self.entries = self.receipts = 0
        self.broken: list[int] = []
        self.misplaced: list[int] = []
        self.lost_tails: list[int] = []
        self.begins_with = self.digest = ""
        self.uncovered: dict[int, StoredEntry] = {}
        self._last = 0

    def outcome(self, unreadable: int) -> Verification:
        return Verification(
            entries=self.entries,
            receipts=self.receipts,
            broken=tuple(self.broken),
            misplaced=tuple(self.misplaced),
            unreadable=unreadable,
            uncovered=len(self.uncovered),
            begins_with=self.begins_with,
            digest=self.digest,
            lost_tails=tuple(self.lost_tails),
        )

    def add(self, entry: TapeEntry) -> None:
        self.entries += 1
        if entry.id != self._last + 1:
            self.misplaced.append(entry.id)
        self._last = entry.id
        if entry.kind == "event" and entry.payload.get("name") == LOST_TAIL_EVENT:
            self.lost_tails.append(entry.id)
        receipt = receipt_in(entry)
        if receipt is not None:
            self._check(entry.id, receipt)
        elif not self.receipts and entry.kind == "event":
            # Only a reset's opening stands before every receipt of its generation.
            match entry.payload:
                case {"name": name, "data": {"digest": str(digest)}} if name == RESET_EVENT:
                    self.begins_with = self.digest = digest
        self.uncovered[entry.id] = entry.encode()

    def _check(self, number: int, receipt: Receipt) -> None:
        self.receipts += 1
        covered = [place for place in self.uncovered if place <= receipt.seen or place >= receipt.first]
        if Chain(self.digest).add(self.uncovered.pop(place) for place in covered).hexdigest() != receipt.digest:
            self.broken.append(number)
        self.digest = receipt.digest
