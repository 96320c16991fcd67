"""What a tape store is: what any store has, and what a store adds that can commit a fork at once."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from bub_redis.tape.entry import StoredEntry, TapeEntry
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.receipt import Chain, Receipt

SESSION_WAIT_S = 30.0
"""How long a library fork waits for a session that another one holds."""


class TapeStore(Protocol):
    """A store whose methods block."""

    def list_tapes(self) -> list[str]:
        """The names of all tapes that hold entries, sorted, without sidecars and forks."""

    def fetch_all(self, query: TapeQuery) -> Iterable[TapeEntry]:
        """The answer to `query`, in order; nothing for an unknown tape. Raises NotFound for a missing anchor."""

    def append(self, tape: str, *entries: TapeEntry) -> list[TapeEntry]:
        """Append entries as one unit and return them as stored."""


class AsyncTapeStore(Protocol):
    """The same methods, awaited."""

    async def list_tapes(self) -> list[str]:
        """The names of all tapes that hold entries, sorted, without sidecars and forks."""

    async def fetch_all(self, query: TapeQuery) -> Iterable[TapeEntry]:
        """The answer to `query`, in order; nothing for an unknown tape. Raises NotFound for a missing anchor."""

    async def append(self, tape: str, *entries: TapeEntry) -> list[TapeEntry]:
        """Append entries as one unit and return them as stored."""


@dataclass(frozen=True)
class Head:
    """Where a tape stands: what a fork sees when it opens, and what its commit is checked against."""

    generation: int = 0
    """One more after every reset."""
    last: int = 0
    """The number of the last entry; 0 for an empty tape."""
    last_ms: int = 0
    """When the last entry was committed, in ms by the server's clock; never falls."""
    receipt: str = ""
    """The stream id of the last receipt; empty without one."""
    digest: str = ""
    """The digest of that receipt."""

    @property
    def last_id(self) -> str:
        """The stream id of the last entry."""
        return f"{self.last_ms}-{self.last}"


@dataclass(frozen=True)
class Grant:
    """The right to write a session's next block: a fencing token that only grows, and who holds it."""

    tape: str
    holder: str
    """The id of the turn, run or fork that was granted the session."""
    token: int
    secret: str
    """Random per grant, so that a token restored from a backup is not taken for ours."""
    dispatch: int | None = None
    """The dispatch number of a turn's attempt; None for a library fork."""

    @property
    def fence(self) -> str:
        """What the tape's fence holds while this grant is the last one."""
        return f"{self.token}:{self.secret}"

    @property
    def lock(self) -> str:
        """What the tape's lock holds while this grant works on the session."""
        return f"{'-' if self.dispatch is None else self.dispatch}:{self.secret}:{self.holder}"


@dataclass(frozen=True)
class Commit:
    """A fork's block on its way to the tape: everything that the one commit point needs, encoded."""

    grant: Grant
    head: Head
    """The parent as the fork saw it."""
    block: Sequence[StoredEntry]
    anchors: Sequence[tuple[int, str]]
    """Place in the block, from 0, and name of each anchor in it."""
    receipt: Receipt


@runtime_checkable
class CommitStore(AsyncTapeStore, Protocol):
    """A store that can read a tape as of a moment and take a fork's block whole or not at all."""

    async def head(self, tape: str) -> Head:
        """Where the tape stands now; an empty Head for an unknown tape. Raises Outage."""

    async def fetch_until(self, query: TapeQuery, head: Head) -> list[TapeEntry]:
        """Answer `query` as the tape stood at `head`.

        Raises NotFound for a missing anchor, Conflict if the tape was reset since, Outage.
        """

    async def chain(self, tape: str, head: Head) -> Chain:
        """The digest chain over what no receipt covers up to `head`. Raises Conflict if the tape was reset since."""

    async def bootstrap(self, tape: str, entries: Sequence[TapeEntry]) -> bool:
        """Append `entries` if the tape has no anchor yet; whether it did. Safe to repeat and to race."""

    def session(self, tape: str, holder: str, wait_s: float) -> AbstractAsyncContextManager[Grant]:
        """Hold the session for a library fork: granted on entry, renewed while open, released at the end.

        Raises SessionBusy if another turn or fork holds the session longer than `wait_s`.
        """

    async def commit(self, commit: Commit) -> Receipt:
        """Append the block and its receipt, whole, once; return the receipt as placed.

        May be repeated: a holder that committed before gets the receipt of then, and nothing is written. Raises
        Fenced, Conflict or TapeBlocked with nothing written, Outage when the outcome is unknown.
        """
