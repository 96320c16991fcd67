"""One line of a tape's file: Bub's JSONL layout, and what is left of it after a crash.

A line is `{"id", "kind", "payload", "meta", "date"}` in UTF-8, ended by LF and by nothing else (cases 72 and 189).
Lines that were appended as one unit carry `"batch": [place, size]` too, which Bub does not look at: a batch counts once
its last line is there. A line that was cut short is closed by NUL and LF before the next append (case 66), so that it
is told from one that was damaged later.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bub_redis.tape.entry import StoredEntry, TapeEntry

CUT_SHORT = b"\x00\n"
"""What closes a line that a crash left without its end."""


@dataclass(frozen=True)
class Record:
    """One line that could be read."""

    entry: TapeEntry
    place: int
    """Place in its batch, from 1."""
    size: int
    """Entries of its batch."""


def encode_records(first: int, entries: Sequence[StoredEntry]) -> bytes:
    """The lines of a batch whose first entry has the number `first`."""
    size = len(entries)
    return b"".join(
        b'{"id": %d, "kind": %b, "payload": %b, "meta": %b, "date": %b%b}\n'
        % (
            first + place,
            json.dumps(stored.kind.decode(), ensure_ascii=False).encode(),
            stored.payload,
            stored.meta,
            json.dumps(stored.date.decode(), ensure_ascii=False).encode(),
            b"" if size == 1 else b', "batch": [%d, %d]' % (place + 1, size),
        )
        for place, stored in enumerate(entries)
    )


def decode_record(line: bytes) -> Record | None:
    """The record in a line, with its LF or without; None for one that holds none.

    A run of NUL bytes, as file systems leave it after a crash, may stand before the record (case 186). NaN and
    Infinity, which Bub writes and JSON does not have, read as null (case 69).
    """
    try:
        value = json.loads(line.lstrip(b"\x00").decode("utf-8-sig"), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or (entry := _entry(value)) is None:
        return None
    match value.get("batch"):
        case [int(place), int(size)] if 1 <= place <= size:
            return Record(entry, place, size)
        case _:
            return Record(entry, 1, 1)


def _entry(value: dict[str, Any]) -> TapeEntry | None:
    match value:
        case {"id": int(number), "kind": str(kind), "payload": dict(payload)} if type(number) is int:
            meta = value.get("meta")
            return TapeEntry(number, kind, payload, meta if isinstance(meta, dict) else {}, _date(value))
        case _:
            return None


def _date(value: dict[str, Any]) -> str:
    # Old tapes of Bub carry `timestamp`, in seconds, instead.
    match value:
        case {"date": str(date)}:
            return date
        case {"timestamp": int() | float() as seconds}:
            try:
                return datetime.fromtimestamp(seconds, UTC).isoformat()
            except (ValueError, OverflowError, OSError):
                return ""
        case _:
            return ""


@dataclass(frozen=True)
class Unreadable:
    """Lines that are left out."""

    offset: int
    """Where the first of them begins, in bytes."""
    reason: str


def whole_batches(lines: Iterable[tuple[int, bytes]]) -> Iterator[TapeEntry | Unreadable]:
    """The entries in a file's lines, each given with its offset in bytes, and what had to be left out.

    Of a batch whose end is missing nothing is given. A damaged line in the middle of a batch takes nothing with it.
    """
    batch = _Batch()
    for offset, line in lines:
        record = decode_record(line)
        if record is not None:
            if not batch.continues_with(record):
                yield from batch.broken()
            yield from batch.add(offset, record)
        elif not line.isspace():
            yield Unreadable(offset, "no record")
            cut_short = line.endswith(CUT_SHORT) or not line.endswith(b"\n")
            yield from batch.broken() if cut_short else batch.skip()
    yield from batch.broken()


class _Batch:
    """The lines of one batch so far."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._entries: list[TapeEntry] = []
        self._offset = self._place = self._size = 0

    def continues_with(self, record: Record) -> bool:
        return record.size == self._size and record.place > self._place

    def add(self, offset: int, record: Record) -> Iterator[TapeEntry]:
        if not self._entries:
            self._offset = offset
        self._entries.append(record.entry)
        self._place, self._size = record.place, record.size
        yield from self._ended()

    def skip(self) -> Iterator[TapeEntry]:
        """A damaged line stands for one of the batch."""
        if self._entries:
            self._place += 1
            yield from self._ended()

    def _ended(self) -> Iterator[TapeEntry]:
        if self._place == self._size:
            whole = self._entries
            self._clear()
            yield from whole

    def broken(self) -> Iterator[Unreadable]:
        """The end of the batch will not come."""
        if self._entries:
            yield Unreadable(self._offset, f"{len(self._entries)} of {self._size} entries of a batch")
        self._clear()
