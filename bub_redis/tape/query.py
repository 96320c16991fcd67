"""Questions to a tape: immutable, answered by a store, with one meaning everywhere."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bub_redis.errors import InvalidInput, NotFound
from bub_redis.tape.entry import TapeEntry

if TYPE_CHECKING:
    from bub_redis.tape.store import AsyncTapeStore


@dataclass(frozen=True)
class TapeQuery:
    """A question to one tape. Every method returns a new query; `all` asks it.

    The anchor is found first, then kinds are filtered, then the limit cuts (case 54).
    """

    tape: str
    store: "AsyncTapeStore" = field(repr=False, compare=False)
    _after_anchor: str | None = None
    _after_last: bool = False
    _kinds: tuple[str, ...] = ()
    _limit: int | None = None

    def after_anchor(self, name: str) -> "TapeQuery":
        """Only what stands after the latest anchor of that name."""
        return replace(self, _after_anchor=name, _after_last=False)

    def last_anchor(self) -> "TapeQuery":
        """Only what stands after the last anchor, whatever its name."""
        return replace(self, _after_anchor=None, _after_last=True)

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
        return self._after_last or self._after_anchor is not None

    def missing_anchor(self) -> NotFound:
        """The error that says which anchor is missing."""
        if self._after_last:
            return NotFound(f"tape {self.tape!r} has no anchor")
        return NotFound(f"tape {self.tape!r} has no anchor {self._after_anchor!r}")

    def matches_anchor(self, entry: TapeEntry) -> bool:
        """Whether `entry` is an anchor that this query may start after."""
        name = entry.anchor_name
        return name is not None and (self._after_last or name == self._after_anchor)

    def matches_kind(self, kind: str) -> bool:
        """Whether entries of this kind are asked for."""
        return not self._kinds or kind in self._kinds

    def without_anchor(self) -> "TapeQuery":
        """The same question about a slice that already starts after the anchor."""
        return replace(self, _after_anchor=None, _after_last=False)

    async def all(self) -> list[TapeEntry]:
        """The entries, in order. Raises NotFound for a missing anchor, Outage if the store does not answer."""
        return list(await self.store.fetch_all(self))


def answer(query: TapeQuery, entries: Sequence[TapeEntry]) -> list[TapeEntry]:
    """Answer `query` from all entries of a tape: what every store must agree with. Raises NotFound."""
    if query.wants_anchor:
        starts = [place for place, entry in enumerate(entries) if query.matches_anchor(entry)]
        if not starts:
            raise query.missing_anchor()
        entries = entries[starts[-1] + 1 :]
    found = [entry for entry in entries if query.matches_kind(entry.kind)]
    return found if query._limit is None else found[: query._limit]
