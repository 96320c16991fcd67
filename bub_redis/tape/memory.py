"""A store in this process's memory: the reference for every other one, and the default of an Agent."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bub_redis.errors import Conflict, Fenced, SessionBusy
from bub_redis.tape.entry import StoredEntry, TapeEntry
from bub_redis.tape.names import SIDECAR_MARKER, check_tape_name
from bub_redis.tape.query import TapeQuery, answer
from bub_redis.tape.receipt import Chain, Receipt
from bub_redis.tape.store import Commit, Grant, Head


@dataclass
class _Record:
    """One tape. Entries are kept as stored bytes, so that no caller's change of a value reaches them."""

    entries: list[StoredEntry] = field(default_factory=list)
    generation: int = 0
    last_ms: int = 0
    receipt: str = ""
    digest: str = ""
    committed: dict[str, Receipt] = field(default_factory=dict)
    tokens: int = 0
    fence: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def head(self) -> Head:
        return Head(self.generation, len(self.entries), self.last_ms, self.receipt, self.digest)

    def decoded(self, until: int | None = None) -> list[TapeEntry]:
        return [TapeEntry.decode(number, stored) for number, stored in enumerate(self.entries[:until], start=1)]

    def extend(self, entries: Sequence[StoredEntry]) -> str:
        self.last_ms = max(time.time_ns() // 1_000_000, self.last_ms)
        self.entries.extend(entries)
        return self.head.last_id


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
        return answer(query, self._same_generation(query.tape, head).decoded(head.last))

    async def chain(self, tape: str, head: Head) -> Chain:
        """The digest chain over what no receipt covers up to `head`. Raises Conflict after a reset."""
        record = self._same_generation(tape, head)
        numbers = [*range(1, head.last + 1)]
        if head.receipt:
            receipt = self._receipt(record, head.receipt)
            numbers = [*receipt.unseen, *range(receipt.last, head.last + 1)]
        return Chain(head.digest).add(record.entries[number - 1] for number in numbers)

    def _receipt(self, record: _Record, stream_id: str) -> Receipt:
        number = int(stream_id.partition("-")[2])
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
        record = self._record(tape)
        try:
            async with asyncio.timeout(wait_s):
                await record.lock.acquire()
        except TimeoutError:
            raise SessionBusy(f"session {tape!r} has been busy for {wait_s:g} s; try again later") from None
        record.tokens += 1
        grant = Grant(tape, holder, record.tokens, secrets.token_hex(8))
        record.fence = grant.fence
        try:
            yield grant
        finally:
            record.lock.release()

    async def commit(self, commit: Commit) -> Receipt:
        """Append the block and its receipt; the receipt of then for a holder that committed before.

        Raises Fenced if another fork was granted the session since, Conflict after a reset.
        """
        grant = commit.grant
        record = self._record(grant.tape)
        if committed := record.committed.get(grant.holder):
            return committed
        if record.fence != grant.fence:
            raise Fenced(f"session {grant.tape!r} was granted to another fork; nothing was written")
        self._same_generation(grant.tape, commit.head)
        receipt_id = record.extend([*commit.block, commit.receipt.entry().encode()])
        record.receipt, record.digest = receipt_id, commit.receipt.digest
        record.committed[grant.holder] = commit.receipt.placed(receipt_id)
        return record.committed[grant.holder]

    def _same_generation(self, tape: str, head: Head) -> _Record:
        record = self._record(tape)
        if record.generation != head.generation:
            raise Conflict(f"tape {tape!r} was reset meanwhile; open it again")
        return record
