"""Questions to a tape: immutable, answered by a store, with one meaning everywhere.

An answer is made in one order. The anchors are found first, among all anchors of the tape, and cut out the slice; then
dates, text and kinds filter it; then the limit cuts (case 54). Entries with meta `context: false` are answered like any
other: only selectors never see them (case 115).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from bub_redis.errors import InvalidInput, NotFound
from bub_redis.tape.dates import Period, iso_text
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.search import SEARCHED_KINDS, folded, has_text

if TYPE_CHECKING:
    from bub_redis.tape.store import AsyncTapeStore

Place = TypeVar("Place")


@dataclass(frozen=True)
class TapeQuery:
    """A question to one tape. Every method returns a new query; `all` asks it.

    The fields have Bub's names: a store that was written for Bub reads them.
    """

    tape: str
    store: "AsyncTapeStore" = field(repr=False, compare=False)
    _query: str | None = None
    _after_anchor: str | None = None
    _after_last: bool = False
    _between_anchors: tuple[str, str] | None = None
    _between_dates: tuple[str, str] | None = None
    _kinds: tuple[str, ...] = ()
    _limit: int | None = None

    def query(self, text: str) -> "TapeQuery":
        """Only entries that hold `text`, as one piece, in a value of their payload; a blank text asks for nothing.

        Case and the two ways to write an accent make no difference; nothing else is guessed (cases 84 and 85). Only
        kinds `message`, `system`, `tool_call` and `tool_result` are searched, and not their keys, roles, ids, images
        and meta (cases 33 and 36). Every entry that matches is in the answer, also one that says the same again.
        """
        return replace(self, _query=text)

    def after_anchor(self, name: str) -> "TapeQuery":
        """Only what stands after the latest anchor of that name."""
        return replace(self, _after_anchor=name, _after_last=False)

    def last_anchor(self) -> "TapeQuery":
        """Only what stands after the last anchor, whatever its name."""
        return replace(self, _after_anchor=None, _after_last=True)

    def between_anchors(self, start: str, end: str) -> "TapeQuery":
        """Only what stands between two anchors, both left out.

        The slice starts at the latest anchor named `start` that has a later one named `end`, and ends at the first
        such (cases 64 and 83). It counts before `after_anchor` and `last_anchor`, as in Bub.
        """
        return replace(self, _between_anchors=(start, end))

    def between_dates(self, start: str | date, end: str | date) -> "TapeQuery":
        """Only entries that happened in this period, both ends included, by their `date` (not by their commit).

        Bounds are ISO 8601 texts, dates or datetimes. A date without a time means its whole day in UTC; a time without
        an offset is UTC. Entries whose date cannot be read are in no period. Raises InvalidInput for a bound that is
        none, and where the start is later than the end.
        """
        bounds = iso_text(start), iso_text(end)
        Period.between(*bounds)
        return replace(self, _between_dates=bounds)

    def kinds(self, *kinds: str) -> "TapeQuery":
        """Only entries of these kinds; none given means all."""
        return replace(self, _kinds=kinds)

    def limit(self, count: int) -> "TapeQuery":
        """At most the first `count` entries of the answer; 0 answers nothing. Raises InvalidInput below 0."""
        if count < 0:
            raise InvalidInput(f"a limit is 0 or more entries, not {count}")
        return replace(self, _limit=count)

    @property
    def wants_anchor(self) -> bool:
        """Whether the answer depends on an anchor that must exist."""
        return self._between_anchors is not None or self._after_last or self._after_anchor is not None

    def missing_anchor(self) -> NotFound:
        """The error that says which anchor is missing."""
        if self._between_anchors is not None:
            start, end = self._between_anchors
            return NotFound(f"tape {self.tape!r} has no anchor {start!r} with an anchor {end!r} behind it")
        if self._after_last:
            return NotFound(f"tape {self.tape!r} has no anchor")
        return NotFound(f"tape {self.tape!r} has no anchor {self._after_anchor!r}")

    def without_anchor(self) -> "TapeQuery":
        """The same question about a slice that was cut out already."""
        return replace(self, _after_anchor=None, _after_last=False, _between_anchors=None)

    def bounds(self, anchors: Iterable[tuple[Place, str]]) -> tuple[Place | None, Place | None]:
        """Where the slice begins and ends, both left out, given all anchors of the tape in order.

        None where it is open. Raises NotFound for a missing anchor.
        """
        if self._between_anchors is not None:
            return self._bounds_between(*self._between_anchors, anchors)
        if not self.wants_anchor:
            return None, None
        found = None
        for place, name in anchors:
            if self._after_last or name == self._after_anchor:
                found = place
        if found is None:
            raise self.missing_anchor()
        return found, None

    def _bounds_between(self, start: str, end: str, anchors: Iterable[tuple[Place, str]]) -> tuple[Place, Place]:
        opened: Place | None = None
        found: tuple[Place, Place] | None = None
        for place, name in anchors:
            if name == end and opened is not None:
                found, opened = (opened, place), None
            if name == start:
                opened = place
        if found is None:
            raise self.missing_anchor()
        return found

    async def all(self) -> list[TapeEntry]:
        """The entries, in order. Raises NotFound for a missing anchor, Outage if the store does not answer."""
        return list(await self.store.fetch_all(self))


@dataclass(frozen=True)
class Filter:
    """What is asked of a single entry: its kind, its date, its text. Made once for all entries of a slice."""

    needle: str = ""
    """Folded; empty for any text."""
    period: Period | None = None
    kinds: frozenset[str] | None = None
    """None for all."""

    @classmethod
    def of(cls, query: TapeQuery) -> "Filter":
        """What a query asks of each entry of its slice. Raises InvalidInput for dates that are none."""
        needle = folded((query._query or "").strip())
        kinds = frozenset(query._kinds) if query._kinds else None
        if needle:
            kinds = SEARCHED_KINDS if kinds is None else SEARCHED_KINDS & kinds
        return cls(needle, None if query._between_dates is None else Period.between(*query._between_dates), kinds)

    @property
    def takes_all(self) -> bool:
        """Whether nothing is asked."""
        return self == Filter()

    def takes_kind_and_date(self, kind: str, date: str) -> bool:
        """Whether an entry can be in the answer, judged without its payload."""
        return (self.kinds is None or kind in self.kinds) and (self.period is None or self.period.holds(date))

    def takes(self, entry: TapeEntry) -> bool:
        """Whether the entry is in the answer."""
        return self.takes_kind_and_date(entry.kind, entry.date) and (not self.needle or has_text(entry, self.needle))


def answer(query: TapeQuery, entries: Iterable[TapeEntry]) -> list[TapeEntry]:
    """Answer `query` from all entries of a tape: what every store must agree with. Raises NotFound, InvalidInput.

    `entries` is gone through twice if anchors are asked for; it may be longer than memory.
    """
    return list(islice(_matching(query, entries), query._limit))


def answer_newest_first(query: TapeQuery, entries: Iterable[TapeEntry]) -> Iterator[TapeEntry]:
    """The answer from its end to its start; the limit of the query is not looked at. Raises NotFound, InvalidInput."""
    return reversed(list(_matching(query, entries)))


def _matching(query: TapeQuery, entries: Iterable[TapeEntry]) -> Iterator[TapeEntry]:
    asked = Filter.of(query)
    before, end = None, None
    if query.wants_anchor:
        anchors = ((place, name) for place, entry in enumerate(entries) if (name := entry.anchor_name) is not None)
        before, end = query.bounds(anchors)
    begin = 0 if before is None else before + 1
    return (entry for entry in islice(entries, begin, end) if asked.takes(entry))
