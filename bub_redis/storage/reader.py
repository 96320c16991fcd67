"""Reading a tape: its head, outline and slices, and the chain of digests, always of one generation.

A slice is read in pages, from either end. Each page comes together with the generation, so that two generations never
mix (cases 74 and 141); what came whole with a head is not read again. Dates filter on an entry's `date`, which no index
knows: a period is read through like a text.
"""

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bub_redis.errors import Conflict, TapeBlocked
from bub_redis.storage.client import RedisServer
from bub_redis.storage.commit import encoded_anchor
from bub_redis.storage.contexts import Contexts
from bub_redis.storage.heads import FIELD_NAMES, FIRST_PAGE_ENTRIES, HEAD_FIELDS, Page, RawEntry, head_of, stored_in
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.script import Script
from bub_redis.tape.damage import Damage
from bub_redis.tape.entry import StoredEntry, TapeEntry
from bub_redis.tape.info import Outline, outlined
from bub_redis.tape.query import Filter, TapeQuery
from bub_redis.tape.receipt import Chain, Receipt
from bub_redis.tape.store import Head
from bub_redis.tape.stream_id import StreamId, entry_number

_BOUNDS = Script(__package__, "bounds")

_LARGEST_PAGE_ENTRIES = 512
_PAGE_BYTES = 1024 * 1024
"""What a page aims at. The size of entries is only known afterwards: where they suddenly grow, one page is larger."""


def next_page_entries(entries: int, size_bytes: int) -> int:
    """How many entries to ask for behind a full page of so many, of `size_bytes`: twice as many, if they fit."""
    fitting = _PAGE_BYTES * entries // (size_bytes + 1)
    return max(1, min(entries * 2, fitting, _LARGEST_PAGE_ENTRIES))


def stored_receipt(stream_id: str, stored: StoredEntry) -> Receipt:
    """The receipt that an entry holds, which must be one by its id. Raises TapeBlocked if it is none."""
    try:
        return Receipt.from_entry(TapeEntry.decode(StreamId.of(stream_id).number, stored), stream_id)
    except (ValueError, RecursionError):
        raise TapeBlocked(f"entry {stream_id} is named as a receipt and is none; see `bub-redis tape repair`") from None


@dataclass(frozen=True)
class _Slice:
    """A part of a tape at one moment, as XRANGE takes it."""

    keys: TapeKeys
    head: Head
    start: str
    end: str

    @property
    def is_context(self) -> bool:
        """Whether it is all that stands behind the last anchor."""
        return bool(self.head.anchor) and self.start == f"({self.head.anchor}" and self.end == self.head.last_id


def _in_context(part: _Slice) -> Page | None:
    """The slice, if it is in what was read together with the head; else None."""
    head = part.head
    if head.context is None or part.end != head.last_id:
        return None
    if part.is_context:
        return head.context
    if head.context and part.start == head.last_id:
        # The last receipt, at most times.
        return head.context[-1:]
    start = StreamId.of(part.start.removeprefix("("))
    if start <= StreamId.of(head.anchor):
        return None
    cut = bisect_right if part.start.startswith("(") else bisect_left
    return head.context[cut(head.context, start, key=lambda read: StreamId.of(read[0])) :]


class Reader:
    """Reads the tapes of one server. Round trips are constant but for the pages of a long slice.

    Entries that nobody of us wrote, or that cannot be decoded, are left out and counted in `damage`.
    """

    def __init__(self, server: RedisServer, namespace: str, contexts: Contexts) -> None:
        self._server = server
        self._namespace = namespace
        self._contexts = contexts
        self.damage = Damage()

    def _keys(self, tape: str) -> TapeKeys:
        return TapeKeys(self._namespace, tape)

    async def head(self, tape: str) -> Head:
        """Where the tape stands now. Raises TapeBlocked, Outage."""
        keys = self._keys(tape)
        with self._server.outages():
            return head_of(await self._server.reply("HMGET", keys.state, *keys.fields(*HEAD_FIELDS)))

    async def answer(self, query: TapeQuery, head: Head) -> list[TapeEntry]:
        """Answer `query` as the tape stood at `head`. Raises NotFound, InvalidInput, Conflict after a reset, Outage."""
        asked = Filter.of(query)
        found: list[TapeEntry] = []
        part = await self._part(query, head)
        if query._limit == 0:
            return found
        first_page = FIRST_PAGE_ENTRIES
        if asked.takes_all and query._limit is not None:
            first_page = min(first_page, query._limit)
        async for page in self._pages(part, first_page_entries=first_page):
            found += self._taken(part, asked, page)
            if query._limit is not None and len(found) >= query._limit:
                break
        return found if query._limit is None else found[: query._limit]

    async def newest_first(self, query: TapeQuery, head: Head) -> AsyncIterator[TapeEntry]:
        """The answer from its end to its start, without its limit; raises as `answer` does."""
        async for entry in self._entries(await self._part(query, head), Filter.of(query), backwards=True):
            yield entry

    async def oldest_first(self, tape: str, head: Head) -> AsyncIterator[TapeEntry]:
        """All entries in order; raises as `answer` does."""
        async for entry in self._entries(self._whole(tape, head), Filter()):
            yield entry

    async def outline(self, tape: str, anchors: int, head: Head) -> Outline:
        """Counts and landmarks as the tape stood at `head`. Raises Conflict after a reset, Outage.

        Two round trips at any length. A tape whose numbers have gaps, which only hands can make, is counted entry by
        entry instead.
        """
        keys = self._keys(tape)
        with self._server.outages():
            state, length, named, members = await self._server.transact(
                ("HMGET", keys.state, *keys.fields("generation", "count", "last")),
                ("XLEN", keys.tape),
                ("ZCOUNT", keys.anchors, "-inf", head.last),
                ("ZREVRANGEBYSCORE", keys.anchors, head.last, "-inf", "LIMIT", 0, max(1, anchors)),
            )
        generation, count, last = (int(value or 0) for value in state)
        self._check_generation(tape, head, generation)
        if not length == count == last:
            return await self._counted(tape, anchors, head)
        newest_ids = [member.partition(b" ")[0].decode() for member in members]
        *newest, usage = await self._single(keys, head, [*reversed(newest_ids[:anchors]), head.usage])
        return Outline(
            entries=head.last,
            anchors=named,
            since_anchor=head.last - (StreamId.of(newest_ids[0]).number if newest_ids else 0),
            newest_anchors=[anchor for anchor in newest if anchor is not None],
            usage=usage,
        )

    async def _counted(self, tape: str, anchors: int, head: Head) -> Outline:
        """The outline from the entries themselves, read page by page in memory that does not grow with the tape."""
        outline = Outline()
        async for entry in self._entries(self._whole(tape, head), Filter()):
            outline = outline.followed_by(outlined([entry], anchors), anchors)
        return outline

    async def _single(self, keys: TapeKeys, head: Head, stream_ids: Sequence[str]) -> list[TapeEntry | None]:
        """The entries with these stream ids, in one round trip; None for an id that is empty or holds none."""
        with self._server.outages():
            generation, *pages = await self._server.transact(
                ("HGET", keys.state, *keys.fields("generation")),
                *(("XRANGE", keys.tape, stream_id, stream_id) for stream_id in stream_ids if stream_id),
            )
        self._check_generation(keys.name, head, generation)
        found = iter(pages)
        return [self._first(keys, next(found)) if stream_id else None for stream_id in stream_ids]

    def _first(self, keys: TapeKeys, page: Page) -> TapeEntry | None:
        return next(self._entries_in(keys, page), None)

    async def stored(self, tape: str, stream_id: str, count: int) -> list[tuple[bytes, StoredEntry]]:
        """Up to `count` entries from `stream_id` on. Raises Outage."""
        with self._server.outages():
            page = await self._server.reply("XRANGE", self._keys(tape).tape, stream_id, "+", "COUNT", count)
        return [(found_id, stored) for found_id, fields in page if (stored := stored_in(fields))]

    async def chain(self, tape: str, head: Head) -> Chain:
        """The digest chain over what no receipt covers up to `head`. Raises Conflict after a reset, Outage."""
        chain = Chain(head.digest)
        keys = self._keys(tape)
        async for page in self._pages(_Slice(keys, head, head.receipt or "-", head.last_id)):
            if page and page[0][0].decode() == head.receipt and (stored := stored_in(page[0][1])):
                receipt = stored_receipt(head.receipt, stored)
                chain.add(await self._unseen(keys, receipt))
            chain.add(stored for each in page if (stored := self._readable(keys, *each)))
        return chain

    async def _unseen(self, keys: TapeKeys, receipt: Receipt) -> list[StoredEntry]:
        """What others appended between the opening of that receipt's fork and its block."""
        if not receipt.unseen:
            return []
        with self._server.outages():
            page = await self._server.reply(
                "XREVRANGE", keys.tape, f"({receipt.first_id}", "-", "COUNT", len(receipt.unseen)
            )
        return [stored for _, fields in reversed(page) if (stored := stored_in(fields))]

    def _whole(self, tape: str, head: Head) -> _Slice:
        return _Slice(self._keys(tape), head, "-", head.last_id)

    async def _part(self, query: TapeQuery, head: Head) -> _Slice:
        """The slice that a query's anchors cut out, at most one round trip. Raises NotFound, Conflict, Outage."""
        keys = self._keys(query.tape)
        if not query.wants_anchor:
            return self._whole(query.tape, head)
        if query._between_anchors is not None:
            begin, end = await self._searched(query, head, *query._between_anchors)
            return _Slice(keys, head, f"({begin}", f"({end}")
        if query._after_anchor is not None:
            begin, _ = await self._searched(query, head, query._after_anchor)
            return _Slice(keys, head, f"({begin}", head.last_id)
        if head.anchor:
            return _Slice(keys, head, f"({head.anchor}", head.last_id)
        with self._server.outages():
            generation, members = await self._server.transact(
                ("HGET", keys.state, *keys.fields("generation")),
                ("ZREVRANGEBYSCORE", keys.anchors, head.last, "-inf", "LIMIT", 0, 1),
            )
        self._check_generation(query.tape, head, generation)
        if not members:
            raise query.missing_anchor()
        return _Slice(keys, head, f"({members[0].partition(b' ')[0].decode()}", head.last_id)

    async def _searched(self, query: TapeQuery, head: Head, *names: str) -> tuple[str, str]:
        """The stream ids of the anchors with these names that bound a slice: see `bounds.lua`."""
        keys = self._keys(query.tape)
        with self._server.outages():
            generation, *ids = await _BOUNDS.run(
                self._server,
                [keys.anchors, keys.state, keys.latest],
                [*keys.fields("generation"), head.last, *map(encoded_anchor, names)],
            )
        self._check_generation(query.tape, head, generation)
        if not ids:
            raise query.missing_anchor()
        begin, end = ids
        return begin.decode(), end.decode()

    async def _entries(self, part: _Slice, asked: Filter, *, backwards: bool = False) -> AsyncIterator[TapeEntry]:
        """What `asked` takes of a slice."""
        async for page in self._pages(part, backwards=backwards):
            for entry in self._taken(part, asked, page):
                yield entry

    def _taken(self, part: _Slice, asked: Filter, page: Page) -> Iterator[TapeEntry]:
        """What `asked` takes of a page. What cannot be in the answer is not decoded."""
        if asked.takes_all:
            return self._entries_in(part.keys, page)
        possible = (read for read in page if self._is_possible(part.keys, *read, asked))
        return filter(asked.takes, self._entries_in(part.keys, possible))

    def _entries_in(self, keys: TapeKeys, page: Iterable[RawEntry]) -> Iterator[TapeEntry]:
        """The entries of a page, as far as they can be read."""
        for stream_id, fields in page:
            number = entry_number(stream_id)
            # What `_readable` asks, without a StoredEntry for each: every turn reads its context.
            if number == 0 or fields[::2] != FIELD_NAMES:
                self._note(keys, stream_id, "not written by bub-redis")
                continue
            try:
                yield TapeEntry.decode(number, fields[1::2])
            except (ValueError, RecursionError):
                self._note(keys, stream_id, "not an entry's fields")

    def _is_possible(self, keys: TapeKeys, stream_id: bytes, fields: Sequence[bytes], asked: Filter) -> bool:
        stored = self._readable(keys, stream_id, fields)
        try:
            return stored is not None and asked.takes_kind_and_date(stored.kind.decode(), stored.date.decode())
        except UnicodeDecodeError:
            self._note(keys, stream_id, "not UTF-8")
            return False

    async def _pages(
        self, part: _Slice, *, backwards: bool = False, first_page_entries: int = FIRST_PAGE_ENTRIES
    ) -> AsyncIterator[Page]:
        """A slice, page by page. Raises Conflict after a reset, Outage."""
        if (known := _in_context(part)) is not None:
            if part.is_context:
                self._contexts.note(part.keys.name, part.head.anchor, known)
            yield known[::-1] if backwards else known
            return
        start, end, count = part.start, part.end, first_page_entries
        while part.head.last:
            page = await self._page(part, start, end, count, backwards)
            if part.is_context and start == part.start and count == FIRST_PAGE_ENTRIES and not backwards:
                self._contexts.note(part.keys.name, part.head.anchor, page)
            yield page
            if len(page) < count:
                return
            edge = f"({page[-1][0].decode()}"
            start, end = (start, edge) if backwards else (edge, end)
            count = next_page_entries(count, sum(len(value) for _, fields in page for value in fields))

    async def _page(self, part: _Slice, start: str, end: str, count: int, backwards: bool) -> Page:
        keys = part.keys
        reading = ("XREVRANGE", keys.tape, end, start) if backwards else ("XRANGE", keys.tape, start, end)
        with self._server.outages():
            generation, page = await self._server.transact(
                ("HGET", keys.state, *keys.fields("generation")), (*reading, "COUNT", count)
            )
        self._check_generation(keys.name, part.head, generation)
        read: Page = page
        return read

    def _check_generation(self, tape: str, head: Head, generation: Any) -> None:
        if int(generation or 0) != head.generation:
            raise Conflict(f"tape {tape!r} was reset meanwhile; open it again")

    def _readable(self, keys: TapeKeys, stream_id: bytes, fields: Sequence[bytes]) -> StoredEntry | None:
        # Redis numbers what is added by hand (`XADD * …`) from 0; our numbers start at 1.
        stored = None if stream_id.endswith(b"-0") else stored_in(fields)
        if stored is None:
            self._note(keys, stream_id, "not written by bub-redis")
        return stored

    def _note(self, keys: TapeKeys, stream_id: bytes, reason: str) -> None:
        self.damage.note(keys.name, stream_id.decode(), reason)
