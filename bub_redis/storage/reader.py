"""Reading a tape: its head, slices in pages, and the chain of digests, each page checked against the generation."""

from collections.abc import AsyncIterator

from bub_redis.errors import Conflict
from bub_redis.storage.client import RedisServer
from bub_redis.storage.commit import encoded_anchor
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape.entry import StoredEntry, TapeEntry
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.receipt import Receipt
from bub_redis.tape.store import Head

_PAGE_ENTRIES = 200
_ANCHORS_PAGE = 100


def entry_number(stream_id: bytes | str) -> int:
    """The number of the entry with this stream id: `<ms>-<number>`."""
    text = stream_id.decode() if isinstance(stream_id, bytes) else stream_id
    return int(text.partition("-")[2])


def stored_entry(fields: dict[bytes, bytes]) -> StoredEntry | None:
    """The stored entry in a stream entry's fields; None for one that was not written by us."""
    if fields.keys() != {b"kind", b"payload", b"meta", b"date"}:
        return None
    return StoredEntry(fields[b"kind"], fields[b"payload"], fields[b"meta"], fields[b"date"])


class Reader:
    """Reads the tapes of one server. Round trips are constant but for the pages of a long slice."""

    def __init__(self, server: RedisServer, namespace: str) -> None:
        self._server = server
        self._namespace = namespace

    def _keys(self, tape: str) -> TapeKeys:
        return TapeKeys(self._namespace, tape)

    async def head(self, tape: str) -> Head:
        """Where the tape stands now. Raises TapeBlocked, Outage."""
        with self._server.outages():
            generation, last, last_ms, receipt, digest = await self._server.commands.execute_command(
                "HMGET", self._keys(tape).state, "generation", "last", "ms", "receipt", "digest"
            )
        return Head(
            int(generation or 0),
            int(last or 0),
            int(last_ms or 0),
            (receipt or b"").decode(),
            (digest or b"").decode(),
        )

    async def answer(self, query: TapeQuery, head: Head) -> list[TapeEntry]:
        """Answer `query` as the tape stood at `head`. Raises NotFound, Conflict after a reset, Outage."""
        start = "-"
        if query.wants_anchor:
            anchor = await self._anchor_id(query, head)
            if anchor is None:
                raise query.missing_anchor()
            start = f"({anchor}"
        found: list[TapeEntry] = []
        if query._limit == 0:
            return found
        async for stream_id, stored in self._slice(query.tape, start, head):
            if query.matches_kind(stored.kind.decode()):
                found.append(TapeEntry.decode(entry_number(stream_id), stored))
                if len(found) == query._limit:
                    break
        return found

    async def stored(self, tape: str, stream_id: str, count: int) -> list[tuple[bytes, StoredEntry]]:
        """Up to `count` entries from `stream_id` on. Raises Outage."""
        with self._server.outages():
            page = await self._server.commands.xrange(self._keys(tape).tape, min=stream_id, count=count)
        return [(found_id, stored) for found_id, fields in page if (stored := stored_entry(fields))]

    async def uncovered(self, tape: str, head: Head) -> AsyncIterator[StoredEntry]:
        """What stands on the tape up to `head` and no receipt covers, in order."""
        async for stream_id, stored in self._slice(tape, head.receipt or "-", head):
            if stream_id.decode() == head.receipt:
                receipt = Receipt.from_entry(TapeEntry.decode(entry_number(stream_id), stored), head.receipt)
                for unseen in await self._unseen(tape, receipt):
                    yield unseen
            yield stored

    async def _unseen(self, tape: str, receipt: Receipt) -> list[StoredEntry]:
        """What others appended between the opening of that receipt's fork and its block."""
        if not receipt.unseen:
            return []
        # All entries of a block have one ms, so the id of its first is known.
        first_id = f"{receipt.id.partition('-')[0]}-{receipt.first}"
        with self._server.outages():
            page = await self._server.commands.xrevrange(
                self._keys(tape).tape, max=f"({first_id}", count=len(receipt.unseen)
            )
        return [stored for _, fields in reversed(page) if (stored := stored_entry(fields))]

    async def _anchor_id(self, query: TapeQuery, head: Head) -> str | None:
        """The stream id of the latest anchor that `query` starts after and `head` had seen."""
        keys = self._keys(query.tape)
        if query._after_anchor is None:
            newest = await self._anchors(keys, head, 0, 1)
            return newest[0][0] if newest else None
        wanted = encoded_anchor(query._after_anchor)
        with self._server.outages():
            latest = await self._server.commands.execute_command("HGET", keys.latest, wanted)
        if latest is None or entry_number(latest) <= head.last:
            return None if latest is None else str(latest.decode())
        # The name was used again after `head`: look for the one before.
        for offset in range(0, head.last, _ANCHORS_PAGE):
            for anchor_id, name in await self._anchors(keys, head, offset, _ANCHORS_PAGE):
                if name == wanted:
                    return anchor_id
        return None

    async def _anchors(self, keys: TapeKeys, head: Head, offset: int, count: int) -> list[tuple[str, bytes]]:
        """Stream id and name of anchors up to `head`, newest first."""
        with self._server.outages():
            members = await self._server.commands.zrevrangebyscore(
                keys.anchors, head.last, "-inf", start=offset, num=count
            )
        pairs = [member.partition(b" ") for member in members]
        return [(anchor_id.decode(), name) for anchor_id, _, name in pairs]

    async def _slice(self, tape: str, start: str, head: Head) -> AsyncIterator[tuple[bytes, StoredEntry]]:
        """Entries from `start` up to `head`, in pages, each read together with the generation (cases 74 and 141)."""
        keys = self._keys(tape)
        while head.last:
            async with self._server.commands.pipeline(transaction=True) as pipe:
                pipe.hget(keys.state, "generation")
                pipe.xrange(keys.tape, min=start, max=head.last_id, count=_PAGE_ENTRIES)
                with self._server.outages():
                    generation, page = await pipe.execute()
            if int(generation or 0) != head.generation:
                raise Conflict(f"tape {tape!r} was reset meanwhile; open it again")
            for stream_id, fields in page:
                if stored := stored_entry(fields):
                    yield stream_id, stored
            if len(page) < _PAGE_ENTRIES:
                return
            start = f"({page[-1][0].decode()}"
