"""What the entries of a tape tell of it: which are ours, and what stood beside them when the last one was written.

Nothing that is read here is taken for well formed. See docs/decisions/0045-repair-from-the-entries.md.
"""

from array import array
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from bub_redis.storage.commit import encoded_anchor
from bub_redis.storage.heads import stored_in
from bub_redis.storage.lock import Committed
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.info import told_usage
from bub_redis.tape.receipt import DIGEST, LARGEST_NUMBER, RESET_EVENT, Receipt, receipt_in
from bub_redis.tape.stream_id import STREAM_ID, StreamId


@dataclass
class Told:
    """What the entries of a tape tell, taken in one after another."""

    misplaced: Collection[str] = ()
    """Ids of entries that look like ours and are not, by their numbers."""
    length: int = 0
    last_id: str = ""
    """Of the last entry, whoever wrote it."""
    foreign: list[str] = field(default_factory=list)
    committed_ms: "array[int]" = field(default_factory=lambda: array("q"))
    """When each entry of ours was committed, by its stream id."""
    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    """The number of each entry of ours."""
    anchors: list[tuple[str, str]] = field(default_factory=list)
    """Stream id and name of each, in order."""
    usage: str = ""
    receipts: list[Receipt] = field(default_factory=list)
    reset: Mapping[str, Any] = field(default_factory=dict)
    """What the last `tape.reset` says."""

    def add(self, raw_id: bytes, flat: Sequence[bytes]) -> None:
        """Take in the next entry, as the server sends it."""
        stream_id = raw_id.decode()
        self.length, self.last_id = self.length + 1, stream_id
        entry = _decoded(stream_id, flat)
        if entry is None or stream_id in self.misplaced:
            self.foreign.append(stream_id)
            return
        self.committed_ms.append(StreamId.of(stream_id).ms)
        self.numbers.append(entry.id)
        if entry.anchor_name is not None:
            self.anchors.append((stream_id, entry.anchor_name))
        elif told_usage(entry) is not None:
            self.usage = stream_id
        elif (receipt := receipt_in(entry)) is not None:
            self.receipts.append(receipt.placed(stream_id))
        elif entry.kind == "event" and entry.payload.get("name") == RESET_EVENT:
            data = entry.payload.get("data")
            self.reset = data if isinstance(data, Mapping) else {}

    @property
    def count(self) -> int:
        """How many entries are ours."""
        return len(self.numbers)

    @property
    def last(self) -> int:
        """The largest number of ours; 0 without one."""
        return max(self.numbers, default=0)

    @property
    def last_ms(self) -> int:
        """When the last of our entries was committed; 0 without one."""
        return self.committed_ms[-1] if self.committed_ms else 0

    @property
    def last_receipt(self) -> tuple[str, str]:
        """Stream id and digest of the last receipt that there was; empty before the first."""
        if self.receipts:
            return self.receipts[-1].id, self.receipts[-1].digest
        receipt_id, digest = str(self.reset.get("receipt", "")), str(self.reset.get("digest", ""))
        return (receipt_id, digest) if STREAM_ID.fullmatch(receipt_id) and DIGEST.fullmatch(digest) else ("", "")

    @property
    def generation(self) -> int:
        """The generation that the last reset began; 0 without one."""
        generation = self.reset.get("generation", 0)
        return generation if type(generation) is int and 0 <= generation < LARGEST_NUMBER else 0


def _decoded(stream_id: str, flat: Sequence[bytes]) -> TapeEntry | None:
    """The entry, if it may be one of ours: by its fields, and since it has a number."""
    ms, number = StreamId.of(stream_id)
    stored = stored_in(flat)
    if not 0 < number < LARGEST_NUMBER or ms >= LARGEST_NUMBER or stored is None:
        return None
    try:
        return TapeEntry.decode(number, stored)
    except (ValueError, RecursionError):
        return None


def misplaced_in(told: Told, known: Mapping[str, str]) -> set[str]:
    """The ids of entries that look like ours and are not.

    What stands behind the last one that is known, if that is there, has a larger number. Of all others those are ours
    that stand in the longest row of rising numbers, the earlier one where two have the same.
    """
    if all(before < after for before, after in pairwise(told.numbers)):
        return set()
    ids = list(zip(told.committed_ms, told.numbers, strict=True))
    end = number_of(known, "ms"), number_of(known, "last")
    known_end = end if end in ids else (LARGEST_NUMBER, 0)
    places = [place for place, at in enumerate(ids) if at <= known_end or at[1] > known_end[1]]
    kept = {places[place] for place in _longest_rise([told.numbers[place] for place in places])}
    return {f"{ms}-{number}" for place, (ms, number) in enumerate(ids) if place not in kept}


def _longest_rise(numbers: Sequence[int]) -> list[int]:
    """The places of a longest row of rising numbers, the last one first."""
    ends: list[int] = []  # the least number with which a row of that length ends
    places: list[int] = []  # where that number stands
    before: list[int] = []  # which place comes before each in its row
    for place, number in enumerate(numbers):
        length = bisect_left(ends, number)
        before.append(places[length - 1] if length else -1)
        if length == len(ends):
            ends.append(number)
            places.append(place)
        elif number < ends[length]:
            ends[length], places[length] = number, place
    row: list[int] = []
    place = places[-1] if places else -1
    while place >= 0:
        row.append(place)
        place = before[place]
    return row


def state_of(told: Told, known: Mapping[str, str], marks: Mapping[str, Committed], *, main: bool) -> dict[str, str]:
    """What a tape's fields in `state` should be: what the entries say, and what was known beyond them."""
    ends = [(number_of(known, "ms"), number_of(known, "last")), (told.last_ms, told.last)]
    if "last" not in known:
        # A receipt that is gone was given all the same: its number does not come again.
        ends += [end for mark in marks.values() if (end := StreamId.of(mark.receipt_id)) > ends[1]]
    state = {
        "generation": str(max(number_of(known, "generation"), told.generation)),
        "count": str(told.count),
        "last": str(max(number for _, number in ends)),
        "ms": str(max(ms for ms, _ in ends)),
        "usage": told.usage,
        "anchor": told.anchors[-1][0] if told.anchors else "",
    }
    if not main:
        return state
    receipt = known.get("receipt", ""), known.get("digest", "")
    if not all(receipt) or not StreamId.of(told.last_receipt[0]) < StreamId.of(receipt[0]) <= (
        int(state["ms"]),
        LARGEST_NUMBER,
    ):
        receipt = told.last_receipt
    state |= dict(zip(("receipt", "digest"), receipt, strict=True))
    if known.get("open") in marks:
        state |= {"open": "", "opener": ""}
    return state


def number_of(known: Mapping[str, str], name: str) -> int:
    """A number among the fields of `state`; 0 where it is not told."""
    return int(known.get(name, 0))


def members(anchors: Sequence[tuple[str, str]]) -> dict[bytes, float]:
    """What the index of anchors holds: member → score."""
    return {
        b"%b %b" % (stream_id.encode(), encoded_anchor(name)): float(StreamId.of(stream_id).number)
        for stream_id, name in anchors
    }


def latest_of(anchors: Sequence[tuple[str, str]]) -> dict[bytes, bytes]:
    """What the index of the latest anchors holds: name → stream id."""
    return {encoded_anchor(name): stream_id.encode() for stream_id, name in anchors}
