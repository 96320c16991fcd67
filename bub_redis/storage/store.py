"""Tapes on Redis Streams."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from bub_redis.errors import Conflict, Outage
from bub_redis.storage.client import RedisServer
from bub_redis.storage.commit import Closing, Writer
from bub_redis.storage.keys import DEFAULT_NAMESPACE, TapeKeys, check_namespace, known_tapes
from bub_redis.storage.lock import Committed, SessionLock
from bub_redis.storage.reader import Reader, entry_number
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.names import SIDECAR_MARKER, check_tape_name
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.receipt import Chain, Receipt
from bub_redis.tape.store import Commit, Grant, Head

DEFAULT_LEASE_S = 9.0
_REREADS = 5


class RedisTapeStore:
    """A tape store on Redis or Valkey; batches and merges are atomic, and safe to repeat.

    Use it as `async with RedisTapeStore.from_url(url) as store`. Its connections belong to one event loop.
    """

    def __init__(
        self, server: RedisServer, *, namespace: str = DEFAULT_NAMESPACE, lease_s: float = DEFAULT_LEASE_S
    ) -> None:
        self.server = server
        self.namespace = check_namespace(namespace)
        self.lock = SessionLock(server, namespace, lease_s)
        self._reader = Reader(server, namespace)
        self._writer = Writer(server, namespace)
        self._registered: set[str] = set()
        self._registrations: set[asyncio.Task[None]] = set()

    @classmethod
    def from_url(
        cls, url: str, *, namespace: str = DEFAULT_NAMESPACE, lease_s: float = DEFAULT_LEASE_S
    ) -> "RedisTapeStore":
        """A store on the server at `url`; nothing is sent before it is used. Raises ConfigError for no URL."""
        return cls(RedisServer(url), namespace=namespace, lease_s=lease_s)

    async def aclose(self) -> None:
        """Close all connections; may be repeated. Later use raises StoreClosed."""
        await asyncio.gather(*self._registrations)
        await self.server.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def list_tapes(self) -> list[str]:
        """The names of all tapes that hold entries, sorted, without sidecars. Raises Outage."""
        commands = self.server.commands
        with self.server.outages():
            names = [name.decode() for name in await commands.zrange(known_tapes(self.namespace), 0, -1)]
            async with commands.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.exists(TapeKeys(self.namespace, name).tape)
                there = await pipe.execute()
        return sorted(name for name, exists in zip(names, there, strict=True) if exists and SIDECAR_MARKER not in name)

    async def fetch_all(self, query: TapeQuery) -> list[TapeEntry]:
        """The answer to `query`, of one generation of the tape. Raises NotFound, Outage; Conflict if it is reset
        again and again while being read."""
        check_tape_name(query.tape)
        for _ in range(_REREADS):
            with contextlib.suppress(Conflict):
                return await self._reader.answer(query, await self.head(query.tape))
        return await self._reader.answer(query, await self.head(query.tape))

    async def append(self, tape: str, *entries: TapeEntry) -> list[TapeEntry]:
        """Append entries as one unit and return them as stored.

        Raises InvalidInput with nothing written; TapeBlocked; Outage, after which it is not known whether they are.
        """
        check_tape_name(tape)
        if not entries:
            return []
        stored = [entry.encode() for entry in entries]
        await self._register(tape)
        last = entry_number(await self._writer.append(tape, stored, _anchors(entries)))
        first = last - len(stored) + 1
        return [TapeEntry.decode(first + place, value) for place, value in enumerate(stored)]

    async def head(self, tape: str) -> Head:
        """Where the tape stands now; an empty Head for an unknown one. Raises Outage."""
        return await self._reader.head(check_tape_name(tape))

    async def fetch_until(self, query: TapeQuery, head: Head) -> list[TapeEntry]:
        """Answer `query` as the tape stood at `head`. Raises NotFound, Conflict after a reset, Outage."""
        return await self._reader.answer(query, head)

    async def chain(self, tape: str, head: Head) -> Chain:
        """The digest chain over what no receipt covers up to `head`. Raises Conflict after a reset, Outage."""
        chain = Chain(head.digest)
        async for stored in self._reader.uncovered(tape, head):
            chain.add((stored,))
        return chain

    async def bootstrap(self, tape: str, entries: Sequence[TapeEntry]) -> bool:
        """Append `entries` if the tape has no anchor yet; whether it did. May be repeated and raced."""
        check_tape_name(tape)
        stored = [entry.encode() for entry in entries]
        await self._register(tape)
        return await self._writer.bootstrap(tape, stored, _anchors(entries))

    def session(self, tape: str, holder: str, wait_s: float) -> AbstractAsyncContextManager[Grant]:
        """Hold the session for a library fork; see `SessionLock.hold`."""
        return self.lock.hold(check_tape_name(tape), holder, wait_s)

    async def commit(self, commit: Commit, closing: Closing | None = None) -> Receipt:
        """Append the block and its receipt, whole, once, and return the receipt as placed; see `Writer.merge`."""
        tape = commit.grant.tape
        await self._register(tape)
        placed = await self._writer.merge(commit, closing)
        if isinstance(placed, Committed):
            return await self.receipt(tape, placed)
        return commit.receipt.placed(placed)

    async def committed(self, tape: str, holder: str) -> Committed | None:
        """What `turns` says of a turn or run; None if it was never committed. Raises Outage."""
        with self.server.outages():
            mark = await self.server.commands.execute_command("HGET", TapeKeys(self.namespace, tape).turns, holder)
        return None if mark is None else Committed.from_mark(mark)

    async def receipt(self, tape: str, committed: Committed) -> Receipt:
        """The receipt that a mark names. Raises Conflict if it is not on the tape any more, Outage."""
        for stream_id, stored in await self._reader.stored(tape, committed.receipt_id, 1):
            if stream_id.decode() == committed.receipt_id:
                return Receipt.from_entry(TapeEntry.decode(entry_number(stream_id), stored), committed.receipt_id)
        raise Conflict(f"receipt {committed.receipt_id} of tape {tape!r} is not on the tape any more")

    async def entry(self, tape: str, number: int, committed_ms: int) -> TapeEntry | None:
        """The entry with this number that was committed at that moment; None if it is not there. Raises Outage."""
        for stream_id, stored in await self._reader.stored(tape, f"{committed_ms}-{number}", 1):
            if entry_number(stream_id) == number:
                return TapeEntry.decode(number, stored)
        return None

    async def _register(self, tape: str) -> None:
        """Keep the tape in the list of known ones: before its first commit, and beside later ones without waiting."""
        if SIDECAR_MARKER in tape:
            return
        if tape in self._registered:
            task = asyncio.create_task(self._note(tape))
            self._registrations.add(task)
            task.add_done_callback(self._registrations.discard)
            return
        with self.server.outages():
            await self._zadd_known(tape)
        self._registered.add(tape)

    async def _note(self, tape: str) -> None:
        # Only the order of the list suffers: the tape was put on it before its first commit.
        with contextlib.suppress(Outage), self.server.outages():
            await self._zadd_known(tape)

    async def _zadd_known(self, tape: str) -> None:
        await self.server.commands.zadd(known_tapes(self.namespace), {tape: time.time_ns() // 1_000_000}, gt=True)


def _anchors(entries: Sequence[TapeEntry]) -> list[tuple[int, str]]:
    return [(place, name) for place, entry in enumerate(entries) if (name := entry.anchor_name) is not None]
