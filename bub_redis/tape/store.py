"""What a tape store is: what any store has, and what a store adds that can commit a fork at once."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeGuard, runtime_checkable

from bub_redis.tape.block import Block
from bub_redis.tape.entry import StoredEntry, TapeEntry
from bub_redis.tape.info import Outline
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.receipt import RESET_EVENT, Chain, Receipt

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

    def reset(self, tape: str) -> None:
        """Empty the tape: the next entry has number 1 again. Nothing happens to an unknown tape."""


class AsyncTapeStore(Protocol):
    """The same methods, awaited."""

    async def list_tapes(self) -> list[str]:
        """The names of all tapes that hold entries, sorted, without sidecars and forks."""

    async def fetch_all(self, query: TapeQuery) -> Iterable[TapeEntry]:
        """The answer to `query`, in order; nothing for an unknown tape. Raises NotFound for a missing anchor."""

    async def append(self, tape: str, *entries: TapeEntry) -> list[TapeEntry]:
        """Append entries as one unit and return them as stored."""

    async def reset(self, tape: str) -> None:
        """Empty the tape: the next entry has number 1 again. Nothing happens to an unknown tape."""


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
    usage: str = ""
    """The stream id of the last entry that tells token usage; empty without one, and where the store has no index."""
    anchor: str = ""
    """The stream id of the last anchor; empty without one, and where the store does not tell it with the head."""
    context: Sequence[tuple[bytes, Sequence[bytes]]] | None = field(default=None, compare=False, repr=False)
    """What stands in the stream behind the last anchor up to the last entry, as the server sends it: stream ids, with
    names and values. None where it was not read together with the head."""

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
    head: Head | None = field(default=None, compare=False, repr=False)
    """Where the tape stood when the session was granted, for a fork that is opened at once; None if not read."""
    has_journal: bool = field(default=True, compare=False, repr=False)
    """Whether earlier attempts of the turn may have left a journal."""

    @property
    def fence(self) -> str:
        """What the tape's fence holds while this grant is the last one."""
        return f"{self.token}:{self.secret}"

    @property
    def lock(self) -> str:
        """What the tape's lock holds while this grant works on the session."""
        return f"{'-' if self.dispatch is None else self.dispatch}:{self.secret}:{self.holder}"


@dataclass(frozen=True)
class Delta:
    """What a fork adds to one tape, its own or a sidecar's."""

    tape: str
    head: Head
    """The parent as the fork saw it."""
    block: Block
    opening: int | None = None
    """Set where the fork reset the tape: all up to `head` goes, the first `opening` entries of the block begin the new
    generation, then comes what others appended since, bytes unchanged (case 96), then the rest of the block."""


def reopened(head: Head) -> list[TapeEntry]:
    """What a reset of a tape at `head` writes behind its opening: nothing where no receipt was given before.

    The event `tape.reset` names the generation that begins and the last receipt, with which the chain goes on.
    """
    if not head.digest:
        return []
    data = {"generation": head.generation + 1, "receipt": head.receipt, "digest": head.digest}
    return [TapeEntry.event(RESET_EVENT, data, context=False)]


@dataclass(frozen=True)
class Commit:
    """A fork on its way to the store: everything that the one commit point needs, encoded."""

    grant: Grant
    main: Delta
    receipt: Receipt
    chain: Chain = field(compare=False)
    """The digest chain up to the block, to redo the receipt when a sidecar is left out."""
    sidecars: tuple[Delta, ...] = ()

    @property
    def stored(self) -> list[StoredEntry]:
        """The block of the main tape with its receipt, as stored."""
        return [*self.main.block.entries, self.receipt.entry().encode()]

    def without(self, sidecar: Delta, reason: str) -> "Commit":
        """The same commit without a sidecar that cannot take its block; the main tape says so, and why."""
        data = {"tape": sidecar.tape, "status": "error", "error": reason}
        block = self.main.block + Block.of([TapeEntry.event("sidecar.merge", data, context=False)])
        digest = self.chain.copy().add(block.entries).hexdigest()
        return replace(
            self,
            main=replace(self.main, block=block),
            receipt=replace(self.receipt, entries=self.receipt.entries + 1, digest=digest),
            sidecars=tuple(other for other in self.sidecars if other != sidecar),
        )


@runtime_checkable
class SurveyedStore(AsyncTapeStore, Protocol):
    """A store that knows a tape's landmarks, and reads it from its end as well as from its start."""

    async def outline(self, tape: str, anchors: int, head: Head | None = None) -> Outline:
        """Counts, up to `anchors` newest anchors and the last usage of a tape, as it stood at `head` if one is given.

        An empty Outline for an unknown tape. Raises Conflict if the tape was reset since `head`, Outage.
        """

    def newest_first(self, query: TapeQuery, head: Head | None = None) -> AsyncIterator[TapeEntry]:
        """The answer to `query` from its end to its start, without a limit, as the tape stood at `head` if given.

        Raises NotFound for a missing anchor, Conflict if the tape is reset meanwhile, Outage.
        """


@runtime_checkable
class OldestFirstStore(AsyncTapeStore, Protocol):
    """A store that reads a whole tape in pages, so that memory does not grow with it."""

    def oldest_first(self, tape: str, head: Head | None = None) -> AsyncIterator[TapeEntry]:
        """All entries in order, as the tape stood at `head` if given. Raises Conflict after a reset, Outage."""


@runtime_checkable
class CommitStore(SurveyedStore, Protocol):
    """A store that can read a tape as of a moment and take a fork's block whole or not at all."""

    async def head(self, tape: str) -> Head:
        """Where the tape stands now; an empty Head for an unknown tape. Raises Outage."""

    async def fetch_until(self, query: TapeQuery, head: Head) -> list[TapeEntry]:
        """Answer `query` as the tape stood at `head`.

        Raises NotFound for a missing anchor, Conflict if the tape was reset since, unless `head` brings all that is
        asked for, Outage.
        """

    async def chain(self, tape: str, head: Head) -> Chain:
        """The digest chain over what no receipt covers up to `head`.

        Raises Conflict if the tape was reset since, Outage.
        """

    async def bootstrap(self, tape: str, entries: Sequence[TapeEntry]) -> bool:
        """Append `entries` if the tape has no anchor yet; whether it did. Safe to repeat and to race.

        Raises InvalidInput or TapeBlocked with nothing written, Outage when the outcome is unknown.
        """

    def session(self, tape: str, holder: str, wait_s: float) -> AbstractAsyncContextManager[Grant]:
        """Hold the session for a library fork: granted on entry, renewed while open, released at the end.

        Raises SessionBusy if another turn or fork holds the session longer than `wait_s`.
        """

    async def commit(self, commit: Commit) -> Receipt:
        """Append the block and its receipt, whole, once; return the receipt as placed.

        May be repeated: a holder that committed before gets the receipt of then, and nothing is written. A sidecar
        that cannot take its block is left out, and the main tape says so. Raises Fenced, Conflict or TapeBlocked with
        nothing written, Outage when the outcome is unknown.
        """

    async def append_fenced(self, grant: Grant, tape: str, head: Head, entries: Sequence[TapeEntry]) -> Head:
        """Append to a sidecar of the granted session at once, whole, once; return where the sidecar stands then.

        `head` is the sidecar as the fork sees it. Raises InvalidInput, Fenced, TapeBlocked and, after a reset of the
        sidecar, Conflict with nothing written; Outage when the outcome is unknown.
        """

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
        """Empty the tape and the tapes of `sidecars`, and begin it anew with `opening`, in one step.

        Numbers start at 1 again, the generation rises, receipts go on from the last one: an event `tape.reset` behind
        the opening says from which. `seen` keeps what was appended after it, bytes unchanged, behind that. Each sidecar
        is told of by an event `sidecar.reset`; one that cannot be reset is left as it is, and its event says so.

        Holds the session meanwhile, for which it waits `wait_s`; `force` takes it from whoever holds it, and what they
        would commit is refused from then on. Raises InvalidInput, SessionBusy naming the turn that holds the session or
        is open on it, Conflict if the tape was reset since `seen`, TapeBlocked, Outage.
        """


def has_commit(store: object) -> TypeGuard[CommitStore]:
    """Whether a store has a commit, so that its tapes can be forked at once."""
    # By its type, which is remembered: for an object all methods of a protocol are looked up each time.
    return issubclass(type(store), CommitStore)
