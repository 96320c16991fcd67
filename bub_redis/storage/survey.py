"""What is wrong with a tape: its entries, read one after another, beside what its other keys say of them.

Entries are chained by digests, the keys beside them are not, so the entries are believed. What looks like one of ours
is one if it stands in the longest row of rising numbers. See docs/decisions/0045-repair-from-the-entries.md.
"""

from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

from bub_redis.storage.client import RedisServer
from bub_redis.storage.commit import encoded_anchor
from bub_redis.storage.heads import stored_in
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.lock import Committed
from bub_redis.storage.reader import entry_number
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.info import told_usage
from bub_redis.tape.names import SIDECAR_MARKER
from bub_redis.tape.receipt import RESET_EVENT, Receipt, receipt_in
from bub_redis.tape.sidecar import sidecar_tape_name
from bub_redis.tape.spill import SPILL_SIDECAR

_PAGE_ENTRIES = 128
_ASKED_AT_ONCE = 1000
_FIELDS = ("generation", "count", "last", "ms", "usage", "anchor")
_MAIN_FIELDS = ("receipt", "digest")


@dataclass(frozen=True)
class Repair:
    """What is wrong with one tape, and is mended by a repair."""

    tape: str
    foreign: int = 0
    """Entries that were not written by bub-redis. They are set aside in the stream `…:tape:damaged`."""
    missing: int = 0
    """Entries that were committed and are not there any more. Nothing brings them back; the tape goes on without."""
    beyond: int = 0
    """Entries that look like ours and stand behind the last one that is known. They are kept: `state` may be older."""
    rebuilt: tuple[str, ...] = ()
    """What does not say what the entries say, of `anchors`, `latest`, `state` and `turns`; `last id` for a stream that
    takes no entry any more, since one with a later id was in it."""
    renamed: tuple[str, ...] = ()
    """Keys of another type, which are set aside as `<key>:damaged:<ms>`."""

    @property
    def needed(self) -> bool:
        """Whether there is anything to mend."""
        return bool(self.foreign or self.missing or self.beyond or self.rebuilt or self.renamed)


def _order(stream_id: str) -> tuple[int, int]:
    ms, _, number = stream_id.partition("-")
    return int(ms or 0), int(number or 0)


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
        self.committed_ms.append(_order(stream_id)[0])
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
        return str(self.reset.get("receipt", "")), str(self.reset.get("digest", ""))


def _decoded(stream_id: str, flat: Sequence[bytes]) -> TapeEntry | None:
    """The entry, if it may be one of ours: by its fields, and since it has a number."""
    number, stored = entry_number(stream_id), stored_in(flat)
    if not number or stored is None:
        return None
    try:
        return TapeEntry.decode(number, stored)
    except (ValueError, RecursionError):
        return None


def _misplaced(told: Told) -> set[str]:
    """The ids of the entries that are left out of the longest row of rising numbers: what somebody put between."""
    if all(before < after for before, after in pairwise(told.numbers)):
        return set()
    ends: list[int] = []  # the least number with which a row of that length ends
    places: list[int] = []  # where that number stands
    before: list[int] = []  # which entry stands before each in its row
    for place, number in enumerate(told.numbers):
        length = bisect_left(ends, number)
        before.append(places[length - 1] if length else -1)
        if length == len(ends):
            ends.append(number)
            places.append(place)
        else:
            ends[length], places[length] = number, place
    kept = set()
    place = places[-1]
    while place >= 0:
        kept.add(place)
        place = before[place]
    ids = (f"{ms}-{number}" for ms, number in zip(told.committed_ms, told.numbers, strict=True))
    return {stream_id for place, stream_id in enumerate(ids) if place not in kept}


@dataclass(frozen=True)
class Survey:
    """A tape as it is found, and what it should be."""

    keys: TapeKeys
    told: Told
    state: Mapping[str, str]
    """The fields of the tape in `state` as they should be; empty for one that should not be there."""
    marks: Mapping[str, str]
    """Turns whose mark is missing → the mark."""
    found: Repair


class Surveyor:
    """Looks at the tapes of one server, and changes nothing. Everything raises Outage."""

    def __init__(self, server: RedisServer, namespace: str) -> None:
        self._server = server
        self._namespace = namespace

    async def tapes(self, tape: str, skipped: Sequence[str] = ()) -> list[str]:
        """The tape and its sidecars', as far as they are known."""
        keys = TapeKeys(self._namespace, tape)
        names: set[str] = set()
        with self._server.outages():
            if keys.state not in skipped:
                fields = await self._server.commands.execute_command("HKEYS", keys.state)
                names = {name.decode().partition("/")[0] for name in fields if b"/" in name}
            # The one that every worker mounts is known also where `state` was lost.
            spill = TapeKeys(self._namespace, sidecar_tape_name(tape, SPILL_SIDECAR))
            if await self._server.commands.exists(spill.tape):
                names.add(SPILL_SIDECAR)
        return [tape, *(f"{tape}{SIDECAR_MARKER}{name}" for name in sorted(names))]

    async def misplaced_keys(self, tape: str) -> tuple[str, ...]:
        """The keys of the tape and its sidecars that are of another type."""
        keys = TapeKeys(self._namespace, tape)
        types = {
            keys.state: "hash",
            keys.turns: "hash",
            keys.lock: "string",
            keys.fence: "string",
            keys.parked_turns: "zset",
            keys.damaged: "stream",
            **dict.fromkeys(keys.batches, "hash"),
        }
        misplaced = await self._of_other_type(types)
        with self._server.outages():
            opened = None
            if keys.state not in misplaced:
                opened = await self._server.commands.execute_command("HGET", keys.state, "open")
        types = {}
        if opened:
            types = {keys.frames(opened.decode()): "stream", keys.journal(opened.decode()): "stream"}
        for name in await self.tapes(tape, misplaced):
            stream, anchors, latest = TapeKeys(self._namespace, name).written
            types |= {stream: "stream", anchors: "zset", latest: "hash"}
        return (*misplaced, *await self._of_other_type(types))

    async def _of_other_type(self, types: Mapping[str, str]) -> tuple[str, ...]:
        with self._server.outages():
            async with self._server.commands.pipeline(transaction=False) as pipe:
                for key in types:
                    pipe.type(key)
                found = await pipe.execute()
        return tuple(
            key
            for (key, expected), there in zip(types.items(), found, strict=True)
            if there.decode() not in {expected, "none"}
        )

    async def survey(self, tape: str, skipped: Sequence[str] = ()) -> Survey:
        """Read the tape whole; `skipped` are keys of another type, which are as if they were not there."""
        keys = TapeKeys(self._namespace, tape)
        told = Told()
        if keys.tape not in skipped:
            told = await self._told(keys)
            if misplaced := _misplaced(told):
                told = await self._told(keys, misplaced)
        known = {} if keys.state in skipped else await self._state(keys)
        if not (told.length or known):
            return Survey(keys, told, {}, {}, Repair(tape))
        state = _state_of(told, known, main=not keys.sidecar)
        rebuilt = []
        if ({} if keys.anchors in skipped else await self._anchors(keys)) != members(told.anchors):
            rebuilt.append("anchors")
        if ({} if keys.latest in skipped else await self._latest(keys)) != latest_of(told.anchors):
            rebuilt.append("latest")
        if any(known.get(name, "") != value for name, value in state.items()):
            rebuilt.append("state")
        marks = await self._missing_marks(keys, told.receipts, skipped)
        if marks:
            rebuilt.append("turns")
        if keys.tape not in skipped and await self._is_stuck(keys, state):
            rebuilt.append("last id")
        last = _number(known, "last")
        beyond = sum(number > last for number in told.numbers) if known else 0
        missing = max(0, _number(known, "count") - (told.count - beyond))
        return Survey(keys, told, state, marks, Repair(tape, len(told.foreign), missing, beyond, tuple(rebuilt)))

    async def _told(self, keys: TapeKeys, misplaced: Collection[str] = ()) -> Told:
        told = Told(misplaced)
        async for stream_id, flat in self.entries(keys):
            told.add(stream_id, flat)
        return told

    async def entries(self, keys: TapeKeys) -> AsyncIterator[tuple[bytes, Sequence[bytes]]]:
        """All entries of a stream, whoever wrote them: id, and names and values as the server sends them."""
        start = "-"
        while True:
            with self._server.outages():
                page = await self._server.commands.execute_command(
                    b"XRANGE", keys.tape, start, "+", "COUNT", _PAGE_ENTRIES
                )
            for stream_id, flat in page:
                yield stream_id, flat
            if len(page) < _PAGE_ENTRIES:
                return
            start = f"({page[-1][0].decode()}"

    async def _state(self, keys: TapeKeys) -> dict[str, str]:
        names = _FIELDS if keys.sidecar else (*_FIELDS, *_MAIN_FIELDS)
        with self._server.outages():
            values = await self._server.commands.execute_command("HMGET", keys.state, *keys.fields(*names))
        return {name: value.decode(errors="replace") for name, value in zip(names, values, strict=True) if value}

    async def _anchors(self, keys: TapeKeys) -> dict[bytes, float]:
        with self._server.outages():
            return dict(await self._server.commands.zrange(keys.anchors, 0, -1, withscores=True))

    async def _latest(self, keys: TapeKeys) -> dict[bytes, bytes]:
        with self._server.outages():
            flat = await self._server.commands.execute_command(b"HGETALL", keys.latest)
            return dict(zip(flat[::2], flat[1::2], strict=True))

    async def _missing_marks(
        self, keys: TapeKeys, receipts: Sequence[Receipt], skipped: Sequence[str]
    ) -> dict[str, str]:
        missing: dict[str, str] = {}
        told = iter(receipts)
        while part := list(islice(told, _ASKED_AT_ONCE)):
            found: Sequence[bytes | None] = [None] * len(part)
            if keys.turns not in skipped:
                with self._server.outages():
                    turns = [receipt.turn for receipt in part]
                    found = await self._server.commands.execute_command("HMGET", keys.turns, *turns)
            for receipt, mark in zip(part, found, strict=True):
                if mark is None:
                    missing[receipt.turn] = Committed(receipt.id, receipt.status, receipt.steers).mark
        return missing

    async def _is_stuck(self, keys: TapeKeys, state: Mapping[str, str]) -> bool:
        """Whether the stream refuses the id that the next entry would have."""
        with self._server.outages():
            if not await self._server.commands.exists(keys.tape):
                return False
            about = await self._server.commands.execute_command("XINFO STREAM", keys.tape)
            seconds, microseconds = await self._server.commands.time()
        next_ms = max(int(state["ms"]), seconds * 1000 + microseconds // 1000)
        return _order(about["last-generated-id"].decode()) >= (next_ms, int(state["last"]) + 1)


def _state_of(told: Told, known: Mapping[str, str], *, main: bool) -> dict[str, str]:
    """What a tape's fields in `state` should be. What only `state` knows, as it is: what it says beyond the entries."""
    state = {
        "generation": str(max(_number(known, "generation"), int(told.reset.get("generation", 0)))),
        "count": str(told.count),
        "last": str(max(_number(known, "last"), told.last)),
        "ms": str(max(_number(known, "ms"), told.last_ms)),
        "usage": told.usage,
        "anchor": told.anchors[-1][0] if told.anchors else "",
    }
    if main:
        receipt = known.get("receipt", ""), known.get("digest", "")
        if _order(told.last_receipt[0]) > _order(receipt[0]) or not receipt[1]:
            receipt = told.last_receipt
        state["receipt"], state["digest"] = receipt
    return state


def _number(known: Mapping[str, str], name: str) -> int:
    value = known.get(name, "")
    return int(value) if value.isdecimal() else 0


def members(anchors: Sequence[tuple[str, str]]) -> dict[bytes, float]:
    """What the index of anchors holds: member → score."""
    return {
        b"%b %b" % (stream_id.encode(), encoded_anchor(name)): float(entry_number(stream_id))
        for stream_id, name in anchors
    }


def latest_of(anchors: Sequence[tuple[str, str]]) -> dict[bytes, bytes]:
    """What the index of the latest anchors holds: name → stream id."""
    return {encoded_anchor(name): stream_id.encode() for stream_id, name in anchors}
