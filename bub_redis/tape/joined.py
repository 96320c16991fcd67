"""Parent and overlay of a fork, read as the one tape that they will be."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from itertools import chain, islice

from bub_redis.errors import NotFound
from bub_redis.tape.block import anchor_places
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.info import Outline, outlined
from bub_redis.tape.overlay import Overlay
from bub_redis.tape.query import Filter, TapeQuery
from bub_redis.tape.store import CommitStore


class JoinedTape:
    """One tape of a fork. The parent is asked only for what the overlay cannot answer, and as of the fork's opening."""

    def __init__(self, store: CommitStore, overlay: Overlay) -> None:
        self._store = store
        self._overlay = overlay

    async def fetch_all(self, query: TapeQuery) -> list[TapeEntry]:
        """The answer to `query`, in order. Raises NotFound, InvalidInput, Conflict after a reset, Outage."""
        asked = Filter.of(query)
        of_parent, appended = await self._parts(query)
        before = [] if of_parent is None else await self._of_parent(of_parent)
        return list(islice(chain(before, filter(asked.takes, appended)), query._limit))

    async def _of_parent(self, query: TapeQuery) -> list[TapeEntry]:
        """The parent's answer. It cannot change while the fork sees the parent as of one moment, so it is read once."""
        overlay = self._overlay
        if overlay.remembered is None or overlay.remembered[:2] != (query, overlay.head):
            # A question to the fork would keep it: a cycle, which holds all that was read until it is looked for.
            asked = replace(query, store=self._store)
            overlay.remembered = asked, overlay.head, await self._store.fetch_until(asked, overlay.head)
        return overlay.remembered[2]

    async def newest_first(self, query: TapeQuery) -> AsyncIterator[TapeEntry]:
        """The answer from its end to its start, without its limit; raises as `fetch_all` does."""
        asked = Filter.of(query)
        of_parent, appended = await self._parts(query)
        for entry in filter(asked.takes, reversed(appended)):
            yield entry
        if of_parent is not None:
            async for entry in self._store.newest_first(of_parent, self._overlay.head):
                yield entry

    async def outline(self, anchors: int) -> Outline:
        """Counts and landmarks of both as one. Raises Conflict after a reset, Outage."""
        appended = outlined(self._overlay.entries, anchors)
        if self._overlay.opening is not None:
            return appended
        before = await self._store.outline(self._overlay.tape, anchors, self._overlay.head)
        return before.followed_by(appended, anchors)

    async def _parts(self, query: TapeQuery) -> tuple[TapeQuery | None, list[TapeEntry]]:
        """What to ask of the parent, None for nothing, and which entries of the overlay stand in the slice behind that.

        Anchors of the overlay are later than any of the parent. Raises NotFound.
        """
        appended = self._overlay.entries
        anchors = anchor_places(appended)
        try:
            before, end = query.bounds(anchors)
        except NotFound:
            if self._overlay.opening is not None:
                raise
            if query._between_anchors is None:
                return query, appended
            return await self._parts_between(query, *query._between_anchors, anchors)
        of_parent = query if before is None and self._overlay.opening is None else None
        return of_parent, appended[0 if before is None else before + 1 : end]

    async def _parts_between(
        self, query: TapeQuery, start: str, end: str, anchors: Iterable[tuple[int, str]]
    ) -> tuple[TapeQuery, list[TapeEntry]]:
        """The parts of a slice that starts in the parent: it ends there too, unless only the overlay has the end."""
        ends = [place for place, name in anchors if name == end]
        if not ends:
            return query, []
        since_start = TapeQuery(query.tape, query.store).after_anchor(start).kinds("anchor")
        try:
            later = await self._store.fetch_until(since_start, self._overlay.head)
        except NotFound:
            raise query.missing_anchor() from None
        if any(entry.anchor_name == end for entry in later):
            return query, []
        return replace(query, _between_anchors=None, _after_anchor=start, _after_last=False), (
            self._overlay.entries[: ends[0]]
        )
