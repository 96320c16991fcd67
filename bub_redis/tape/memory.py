"""A store in this process's memory: the reference for every other one, and the default of an Agent."""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bub_redis.errors import Conflict
from bub_redis.tape.block import Block
from bub_redis.tape.entry import StoredEntry, TapeEntry
from bub_redis.tape.info import Outline, outlined
from bub_redis.tape.names import SIDECAR_MARKER, check_tape_name, owner_tape
from bub_redis.tape.query import TapeQuery, answer, answer_newest_first
from bub_redis.tape.receipt import Chain, Receipt
from bub_redis.tape.session import LocalSession
from bub_redis.tape.sidecar import reset_events
from bub_redis.tape.store import Commit, Delta, Grant, Head, reopened
from bub_redis.tape.stream_id import StreamId


@dataclass
class _Record:
    """One tape. Entries are kept as stored bytes, so that no caller's change of a value reaches them."""

    entries: list[StoredEntry] = field(default_factory=list)
    generation: int = 0
    last_ms: int = 0
    receipt: str = ""
    digest: str = ""
    committed: dict[str, Receipt] = field(default_factory=dict)
    reset_ms: int = 0
    """When the present generation began: receipts of before are not on the tape."""
    session: LocalSession = field(default_factory=LocalSession)

    @property
    def head(self) -> Head:
        return Head(self.generation, len(self.entries), self.last_ms, self.receipt, self.digest)

    def decoded(self, until: int | None = None) -> list[TapeEntry]:
        return [TapeEntry.decode(number, stored) for number, stored in enumerate(self.entries[:until], start=1)]

    def extend(self, entries: Sequence[StoredEntry]) -> str:
        self.last_ms = max(time.time_ns() // 1_000_000, self.last_ms)
        self.entries.extend(entries)
        return self.head.last_id

    def restart(self, opening: Sequence[StoredEntry], behind: Sequence[StoredEntry]) -> None:
        """Begin the next generation. Its ms is a later one, so that no stream id comes again."""
        self.generation += 1
        self.last_ms = self.reset_ms = max(time.time_ns() // 1_000_000, self.last_ms + 1)
        self.entries = [*opening, *behind]

    def take(self, delta: Delta, last: Sequence[StoredEntry] = ()) -> str:
        """Append a fork's block and what comes last, behind what others appended meanwhile."""
        opening = delta.opening or 0
        if delta.opening is not None:
            self.restart(delta.block.entries[:opening], self.entries[delta.head.last :])
        return self.extend([*delta.block.entries[opening:], *last])


class InMemoryTapeStore:
    """Tapes that live as long as this object. Every batch and every commit is whole: nothing awaits in the middle."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def _record(self, tape: str) -> _Record:
        return self._records.setdefault(check_tape_name(tape), _Record())

    async def list_tapes(self) -> list[str]:
        """The names of all tapes that hold entries, sorted, without sidecars."""
        return sorted(name for name, record in self._records.items() if record.entries and SIDECAR_MARKER not in name)

    async def fetch_all(self, query: TapeQuery) -> list[TapeEntry]:
        """The answer to `query`, in order. Raises NotFound for a missing anchor."""
        return answer(query, self._record(query.tape).decoded())

    async def append(self, tape: str, *entries: TapeEntry) -> list[TapeEntry]:
        """Append entries as one unit and return them as stored. Raises InvalidInput with nothing written."""
        stored = [entry.encode() for entry in entries]
        record = self._record(tape)
        first = len(record.entries) + 1
        record.extend(stored)
        return [TapeEntry.decode(first + place, value) for place, value in enumerate(stored)]

    async def head(self, tape: str) -> Head:
        """Where the tape stands now."""
        return self._record(tape).head

    async def fetch_until(self, query: TapeQuery, head: Head) -> list[TapeEntry]:
        """Answer `query` as the tape stood at `head`. Raises NotFound, and Conflict after a reset."""
        return answer(query, self._seen(query.tape, head))

    async def outline(self, tape: str, anchors: int, head: Head | None = None) -> Outline:
        """Counts and landmarks of the tape, as it stood at `head` if given. Raises Conflict after a reset."""
        return outlined(self._seen(tape, head), anchors)

    async def newest_first(self, query: TapeQuery, head: Head | None = None) -> AsyncIterator[TapeEntry]:
        """The answer to `query` from its end to its start. Raises NotFound, and Conflict after a reset."""
        for entry in answer_newest_first(query, self._seen(query.tape, head)):
            yield entry

    async def oldest_first(self, tape: str, head: Head | None = None) -> AsyncIterator[TapeEntry]:
        """All entries in order. Raises Conflict after a reset."""
        for entry in self._seen(tape, head):
            yield entry

    def _seen(self, tape: str, head: Head | None) -> list[TapeEntry]:
        if head is None:
            return self._record(tape).decoded()
        return self._same_generation(tape, head).decoded(head.last)

    async def chain(self, tape: str, head: Head) -> Chain:
        """The digest chain over what no receipt covers up to `head`. Raises Conflict after a reset."""
        record = self._same_generation(tape, head)
        numbers = [*range(1, head.last + 1)]
        if head.receipt and StreamId.of(head.receipt).ms >= record.reset_ms:
            receipt = self._receipt(record, head.receipt)
            numbers = [*receipt.unseen, *range(receipt.last, head.last + 1)]
        return Chain(head.digest).add(record.entries[number - 1] for number in numbers)

    def _receipt(self, record: _Record, stream_id: str) -> Receipt:
        number = StreamId.of(stream_id).number
        return Receipt.from_entry(TapeEntry.decode(number, record.entries[number - 1]), stream_id)

    async def bootstrap(self, tape: str, entries: Sequence[TapeEntry]) -> bool:
        """Append `entries` if the tape has no anchor yet; whether it did."""
        if any(entry.anchor_name is not None for entry in self._record(tape).decoded()):
            return False
        await self.append(tape, *entries)
        return True

    @asynccontextmanager
    async def session(self, tape: str, holder: str, wait_s: float) -> AsyncIterator[Grant]:
        """Hold the session for a library fork. Raises SessionBusy if it stays held longer than `wait_s`."""
        session = self._record(owner_tape(tape)).session
        async with session.locked(tape, wait_s):
            yield session.grant(tape, holder)

    async def commit(self, commit: Commit) -> Receipt:
        """Append the block and its receipt; the receipt of then for a holder that committed before.

        A sidecar that was reset meanwhile is left out. Raises Fenced if another fork was granted the session since,
        Conflict after a reset.
        """
        grant = commit.grant
        record = self._record(grant.tape)
        if committed := record.committed.get(grant.holder):
            return committed
        record.session.check(grant)
        self._same_generation(grant.tape, commit.main.head)
        for sidecar in commit.sidecars:
            if self._record(sidecar.tape).generation != sidecar.head.generation:
                commit = commit.without(sidecar, f"tape {sidecar.tape!r} was reset meanwhile")
        for sidecar in commit.sidecars:
            self._record(sidecar.tape).take(sidecar)
        receipt_id = record.take(commit.main, [commit.receipt.entry().encode()])
        record.receipt, record.digest = receipt_id, commit.receipt.digest
        record.committed[grant.holder] = commit.receipt.placed(receipt_id)
        return record.committed[grant.holder]

    async def append_fenced(self, grant: Grant, tape: str, head: Head, entries: Sequence[TapeEntry]) -> Head:
        """Append to a sidecar at once; where it stands then. Raises InvalidInput, Fenced, Conflict after a reset."""
        self._record(grant.tape).session.check(grant)
        record = self._same_generation(tape, head)
        record.extend(Block.of(entries).entries)
        return record.head

    async def reset(
        self,
        tape: str,
        opening: Sequence[TapeEntry] = (),
        *,
        seen: Head | None = None,
        sidecars: Sequence[str] = (),
        force: bool = False,
        wait_s: float = 0.0,
    ) -> None:
        """Empty the tape and its sidecars' and begin it anew; see `CommitStore.reset`."""
        if force:
            self._record(owner_tape(tape)).session.seize()
        async with self.session(tape, f"reset-{secrets.token_hex(4)}", wait_s):
            record = self._record(tape) if seen is None else self._same_generation(tape, seen)
            if seen is not None and seen.digest != record.digest:
                raise Conflict(f"a turn was merged to tape {tape!r} meanwhile; nothing was written")
            entries = [*opening, *reopened(record.head), *reset_events(sidecars, {})]
            stored = Block.of(entries).entries
            record.restart(stored, [] if seen is None else record.entries[seen.last :])
            for sidecar in sidecars:
                self._record(sidecar).restart((), ())

    async def delete(self, tape: str, *, wait_s: float = 0.0) -> None:
        """Remove the tape and its sidecars for good. Raises SessionBusy."""
        async with self.session(tape, f"delete-{secrets.token_hex(4)}", wait_s):
            for name in [name for name in self._records if owner_tape(name) == tape]:
                del self._records[name]

    def _same_generation(self, tape: str, head: Head) -> _Record:
        record = self._record(tape)
        if record.generation != head.generation:
            raise Conflict(f"tape {tape!r} was reset meanwhile; open it again")
        return record
