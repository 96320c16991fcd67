"""Tapes on Redis Streams."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from bub_redis import faults
from bub_redis.errors import Conflict, Fenced, InvalidInput
from bub_redis.storage.client import RedisServer
from bub_redis.storage.commit import LastFrame, Writer
from bub_redis.storage.contexts import Contexts
from bub_redis.storage.erase import Eraser, Hook
from bub_redis.storage.keys import DEFAULT_NAMESPACE, TapeKeys, check_namespace
from bub_redis.storage.known import KnownTapes
from bub_redis.storage.lock import Committed, SessionLock
from bub_redis.storage.parking import Parked, Parking
from bub_redis.storage.reader import Reader, stored_receipt
from bub_redis.storage.repair import REPAIR_EVENT, Repairer
from bub_redis.storage.scanning import fields_of
from bub_redis.storage.script import Replicas
from bub_redis.storage.survey import Repair
from bub_redis.tape.block import Block
from bub_redis.tape.damage import Damage
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.info import Outline
from bub_redis.tape.names import check_tape_name, owner_tape
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.receipt import Chain, Receipt
from bub_redis.tape.store import Commit, Grant, Head
from bub_redis.tape.stream_id import StreamId, entry_number

DEFAULT_LEASE_S = 9.0
_REREADS = 5
_Answer = TypeVar("_Answer")


class RedisTapeStore:
    """A tape store on Redis or Valkey; batches and merges are atomic, and safe to repeat.

    Use it as `async with RedisTapeStore.from_url(url) as store`. Its connections belong to one event loop.
    """

    def __init__(
        self,
        server: RedisServer,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        lease_s: float = DEFAULT_LEASE_S,
        replicas: Replicas | None = None,
    ) -> None:
        """A store on `server`; with `replicas`, merges are acknowledged only when so many have them."""
        self.server = server
        self.namespace = check_namespace(namespace)
        contexts = Contexts()
        self.lock = SessionLock(server, namespace, lease_s, contexts)
        self._reader = Reader(server, namespace, contexts)
        self._writer = Writer(server, namespace, replicas)
        self._eraser = Eraser(server, namespace, self.lock, self._reader)
        self._parking = Parking(server, namespace)
        self._repairer = Repairer(server, namespace, self.lock)
        self._known = KnownTapes(server, namespace)

    @classmethod
    def from_url(
        cls, url: str, *, namespace: str = DEFAULT_NAMESPACE, lease_s: float = DEFAULT_LEASE_S
    ) -> "RedisTapeStore":
        """A store on the server at `url`; nothing is sent before it is used. Raises ConfigError for no URL."""
        return cls(RedisServer(url), namespace=namespace, lease_s=lease_s)

    async def aclose(self) -> None:
        """Close all connections; may be repeated. Later use raises StoreClosed."""
        try:
            await self.settle()
        finally:
            await self.server.aclose()

    async def settle(self) -> None:
        """Wait for what is noted beside appends and merges in the background; raises nothing."""
        await self._known.settle()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def list_tapes(self) -> list[str]:
        """The names of all tapes that hold entries, sorted, without sidecars. Raises Outage."""
        return await self._known.names()

    async def fetch_all(self, query: TapeQuery) -> list[TapeEntry]:
        """The answer to `query`, of one generation of the tape. Raises NotFound, Outage; Conflict if it is reset
        again and again while being read."""
        return await self._of_one_generation(query.tape, partial(self._reader.answer, query))

    async def _of_one_generation(self, tape: str, read: Callable[[Head], Awaitable[_Answer]]) -> _Answer:
        for _ in range(_REREADS):
            with contextlib.suppress(Conflict):
                return await read(await self.head(tape))
        return await read(await self.head(tape))

    async def append(self, tape: str, *entries: TapeEntry) -> list[TapeEntry]:
        """Append entries as one unit and return them as stored.

        Raises InvalidInput with nothing written; TapeBlocked; Outage, after which it is not known whether they are.
        """
        check_tape_name(tape)
        if not entries:
            return []
        block = Block.of(entries)
        await self._known.note(tape)
        first = StreamId.of(await self._writer.append(tape, block)).number - len(block) + 1
        return [TapeEntry.encoded(first + place, stored) for place, stored in enumerate(block.entries)]

    async def head(self, tape: str) -> Head:
        """Where the tape stands now; an empty Head for an unknown one. Raises Outage."""
        return await self._reader.head(check_tape_name(tape))

    async def fetch_until(self, query: TapeQuery, head: Head) -> list[TapeEntry]:
        """Answer `query` as the tape stood at `head`. Raises NotFound, Conflict after a reset, Outage."""
        return await self._reader.answer(query, head)

    async def outline(self, tape: str, anchors: int, head: Head | None = None) -> Outline:
        """Counts and landmarks of the tape, as it stood at `head` if given, in at most three round trips.

        Raises Conflict if the tape was reset since `head`, Outage.
        """
        read = partial(self._reader.outline, tape, anchors)
        return await (self._of_one_generation(tape, read) if head is None else read(head))

    async def newest_first(self, query: TapeQuery, head: Head | None = None) -> AsyncIterator[TapeEntry]:
        """The answer to `query` from its end to its start, without a limit, read in pages as far as it is asked for.

        Raises NotFound for a missing anchor, Conflict if the tape is reset meanwhile, Outage.
        """
        async for entry in self._reader.newest_first(query, head or await self.head(query.tape)):
            yield entry

    async def oldest_first(self, tape: str, head: Head | None = None) -> AsyncIterator[TapeEntry]:
        """All entries in order, read in pages. Raises Conflict if the tape is reset meanwhile, Outage."""
        async for entry in self._reader.oldest_first(tape, head or await self.head(tape)):
            yield entry

    @property
    def damage(self) -> Damage:
        """The entries that could not be read so far."""
        return self._reader.damage

    async def chain(self, tape: str, head: Head) -> Chain:
        """The digest chain over what no receipt covers up to `head`. Raises Conflict after a reset, Outage."""
        return await self._reader.chain(tape, head)

    async def bootstrap(self, tape: str, entries: Sequence[TapeEntry]) -> bool:
        """Append `entries` if the tape has no anchor yet; whether it did. May be repeated and raced."""
        check_tape_name(tape)
        block = Block.of(entries)
        await self._known.note(tape)
        return await self._writer.bootstrap(tape, block)

    def session(self, tape: str, holder: str, wait_s: float) -> AbstractAsyncContextManager[Grant]:
        """Hold the session for a library fork; see `SessionLock.hold`."""
        return self.lock.hold(check_tape_name(tape), holder, wait_s, reads_context=True)

    async def commit(self, commit: Commit, last_frame: LastFrame | None = None) -> Receipt:
        """Append the block and its receipt, whole, once, and return the receipt as placed; see `Writer.merge`.

        What the fence refuses is parked: see `parked`. A repeat after a reset took the receipt raises Conflict.
        """
        tape = commit.grant.tape
        await self._known.note(tape)
        try:
            placed = await self._writer.merge(commit, last_frame)
        except Fenced:
            await self._parking.park(commit)
            raise
        if isinstance(placed, Committed):
            # On another connection than the one that wrote it: that one's WAIT did not count for it.
            await self.confirm(tape, commit.grant.holder, placed)
            return await self.receipt(tape, placed)
        return placed

    async def append_fenced(self, grant: Grant, tape: str, head: Head, entries: Sequence[TapeEntry]) -> Head:
        """Append to a sidecar of the granted session at once, whole, once; where it stands then.

        Raises InvalidInput, Fenced, Conflict after a reset of the sidecar, or TapeBlocked with nothing written; Outage
        when the outcome is unknown.
        """
        if not entries:
            return head
        last = StreamId.of(await self._writer.append_fenced(grant, tape, head, Block.of(entries)))
        faults.point("during-spill")
        # What the batch may hold beside entries is not known here.
        return dataclasses.replace(head, last=last.number, last_ms=last.ms, anchor="", context=None)

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
        """Empty the tape and its sidecars' and begin it anew, in one step; see `CommitStore.reset`.

        `force` only bars the tape: whoever asks for it cancels the open turn on the queue side first.
        """
        check_tape_name(tape)
        await self._known.note(tape)
        await self._eraser.reset(tape, opening, seen=seen, sidecars=sidecars, force=force, wait_s=wait_s)

    async def sidecars(self, tape: str) -> list[str]:
        """The names of the tapes that the tape's sidecars have, sorted. Raises Outage."""
        return await self._eraser.sidecars(check_tape_name(tape))

    async def delete(
        self, tape: str, *, wait_s: float = 0.0, guard: Hook | None = None, forget: Hook | None = None
    ) -> None:
        """Remove the tape, its sidecars and every other key with its name, for good.

        Holds the session to the end: after `guard` raised nothing, the tape's keys go, then what `forget` removes, then
        its place in the list of tapes, last the lock. May be repeated if it was cut short. Raises what both raise,
        SessionBusy naming the turn that holds the session or is open on it, TapeBlocked, Outage.
        """
        _owner(tape)

        async def unlist() -> None:
            if forget:
                await forget()
            await self._known.forget(tape)

        await self._eraser.delete(tape, wait_s=wait_s, guard=guard, forget=unlist)

    async def has_entries(self, tape: str) -> bool:
        """Whether there is a stream of that name, also where nothing says any more how it stands. Raises Outage."""
        with self.server.outages():
            return bool(await self.server.reply("EXISTS", TapeKeys(self.namespace, check_tape_name(tape)).tape))

    async def survey(self, tape: str, *, turns: Collection[str] = ()) -> list[Repair]:
        """What `repair` would mend of the tape, first, and of each sidecar; nothing is changed. Raises Outage."""
        return await self._repairer.survey(_owner(tape), turns)

    async def repair(self, tape: str, *, turns: Collection[str] = (), wait_s: float = 0.0) -> list[Repair]:
        """Make the tape and its sidecars fit to be written again, and return what was mended of each.

        What its entries say is put back into the keys beside them; what is not the tape's is set aside under names that
        end in `damaged`; the event `tape.repair` tells of it. Entries that are gone stay gone. May be repeated: on a
        sound tape it does nothing. `turns` are those that wait in its queue: keys of theirs may stand in the way too.
        Holds the session meanwhile. Raises SessionBusy if a turn is at work on it, Fenced, Conflict if somebody goes on
        writing to the stream, Outage.
        """
        found = await self._repairer.repair(_owner(tape), turns, wait_s)
        mended = [dataclasses.asdict(repair) for repair in found if repair.needed]
        if mended:
            await self.append(tape, TapeEntry.event(REPAIR_EVENT, {"repairs": mended}, context=False))
        return found

    async def parked(self, tape: str) -> list[Parked]:
        """The overlays that the fence refused to merge in the last days, oldest first. Raises Outage."""
        return await self._parking.parked(check_tape_name(tape))

    async def confirm(self, tape: str, holder: str, committed: Committed) -> None:
        """Wait for the replicas that an earlier commit may not have reached. Raises Outage if it has not yet."""
        await self._writer.confirm(tape, holder, committed)

    async def committed(self, tape: str, holder: str) -> Committed | None:
        """What `turns` says of a turn or run; None if it was never committed. Raises Outage."""
        with self.server.outages():
            mark = await self.server.reply("HGET", TapeKeys(self.namespace, tape).turns, holder)
        return None if mark is None else Committed.from_mark(mark)

    async def committed_ids(self, tape: str) -> list[str]:
        """The ids of all turns and runs that were committed to the tape. Raises Outage."""
        turns = TapeKeys(self.namespace, tape).turns
        return [turn.decode() async for page in fields_of(self.server, turns) for turn, _ in page]

    async def receipt(self, tape: str, committed: Committed) -> Receipt:
        """The receipt that a mark names. Raises Conflict if it is not on the tape any more, TapeBlocked, Outage."""
        for stream_id, stored in await self._reader.stored(tape, committed.receipt_id, 1):
            if stream_id.decode() == committed.receipt_id:
                return stored_receipt(committed.receipt_id, stored)
        raise Conflict(f"receipt {committed.receipt_id} of tape {tape!r} is not on the tape any more")

    async def block(self, tape: str, receipt: Receipt) -> list[TapeEntry]:
        """The entries of a receipt's block, as far as they are on the tape. Raises Outage."""
        found = await self._reader.stored(tape, receipt.first_id, receipt.entries)
        return [TapeEntry.decode(entry_number(stream_id), stored) for stream_id, stored in found]

    async def entry(self, tape: str, number: int, committed_ms: int) -> TapeEntry | None:
        """The entry with this number that was committed at that moment; None if it is not there. Raises Outage."""
        for stream_id, stored in await self._reader.stored(tape, f"{committed_ms}-{number}", 1):
            if entry_number(stream_id) == number:
                return TapeEntry.decode(number, stored)
        return None


def _owner(tape: str) -> str:
    """The tape, if it is not a sidecar's. Raises InvalidInput."""
    if owner_tape(check_tape_name(tape)) != tape:
        raise InvalidInput(
            f"{tape!r} is a sidecar's tape: it is repaired and deleted with its owner, or reset by itself"
        )
    return tape
