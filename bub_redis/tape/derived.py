"""What a store with indexes keeps of a tape, derived from its entries alone."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.receipt import RESET_EVENT, Chain, Receipt, receipt_in
from bub_redis.tape.store import Head


@dataclass(frozen=True)
class Until:
    """Entries up to a moment; they can be gone through as often as `entries` can."""

    entries: Iterable[TapeEntry]
    head: Head | None

    def __iter__(self) -> Iterator[TapeEntry]:
        head = self.head
        return iter(self.entries) if head is None else takewhile(lambda entry: entry.id <= head.last, self.entries)


def as_read(entry: Any) -> TapeEntry:
    """An entry of any store as a value of ours: what is no JSON is made so, so that no entry spoils its tape."""
    return TapeEntry(entry.id, entry.kind, _plain(entry.payload), _plain(entry.meta), entry.date)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)


def receipt_of(holder: str, entries: Iterable[TapeEntry]) -> Receipt | None:
    """The receipt that a holder has on the tape."""
    return next((found for entry in entries if (found := receipt_in(entry)) and found.turn == holder), None)


def head_of(entries: Iterable[TapeEntry]) -> Head:
    """Where a tape stands, from its entries; a reset's event says with which receipt the chain goes on."""
    head = Head()
    for entry in entries:
        head = replace(head, last=max(head.last, entry.id))
        if receipt := receipt_in(entry):
            head = replace(head, receipt=receipt.id, digest=receipt.digest)
        elif not head.digest and entry.kind == "event" and entry.payload.get("name") == RESET_EVENT:
            data = entry.payload.get("data")
            if isinstance(data, Mapping):
                head = replace(head, receipt=str(data.get("receipt", "")), digest=str(data.get("digest", "")))
    return head


def uncovered(entries: Iterable[TapeEntry], head: Head) -> Chain:
    """The chain behind the last receipt: what it did not cover, itself, and what came later."""
    seen = Until(entries, head)
    last = next((found for entry in seen if (found := receipt_in(entry)) and found.digest == head.digest), None)
    return Chain(head.digest).add(
        entry.encode() for entry in seen if last is None or entry.id in last.unseen or entry.id >= last.last
    )
