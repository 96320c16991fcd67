"""Any store with the four methods, made into one that can be forked.

Such a store has no commit, so a merge appends in order and is not atomic: what dies in the middle leaves the first
entries of a block. A store that appends several entries as one unit, as FileTapeStore does, gets whole merges all the
same.
"""

import asyncio
import inspect
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast, runtime_checkable
from weakref import WeakValueDictionary

from bub_redis.errors import BubError, Conflict, ErrorKind, InvalidInput, NotFound, SessionBusy
from bub_redis.tape.derived import Until, as_read, head_of, receipt_of, uncovered
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.info import Outline, outlined
from bub_redis.tape.names import SIDECAR_MARKER, check_tape_name, owner_tape
from bub_redis.tape.query import TapeQuery, answer, answer_newest_first
from bub_redis.tape.receipt import Chain, Receipt
from bub_redis.tape.session import LocalSession
from bub_redis.tape.shielded import to_its_end
from bub_redis.tape.sidecar import reset_events
from bub_redis.tape.store import AsyncTapeStore, Commit, Delta, Grant, Head, SurveyedStore, TapeStore, reopened

_Answer = TypeVar("_Answer")
_SESSION_POLL_S = 0.05


@runtime_checkable
class ScannedStore(Protocol):
    """A blocking store that can be gone through without holding a tape in memory."""

    def entries(self, tape: str) -> AbstractContextManager[Iterable[TapeEntry]]:
        """All entries of the tape as it is now; they may be gone through again and again."""


@runtime_checkable
class SharedStore(Protocol):
    """A blocking store that keeps other processes from opening a fork."""

    def hold_session(self, tape: str) -> Callable[[], None] | None:
        """Hold the session of a tape until the returned function is called; None if another process holds it."""


def adapted(store: TapeStore | AsyncTapeStore) -> SurveyedStore:
    """The store itself if it has a commit or is a fork; else an AdaptedStore over it, the same one while it is in use.

    The methods of a store are run in threads unless its `append` is a coroutine function.
    """
    # By its type, which is remembered: for an object all methods of a protocol are looked up each time.
    if issubclass(type(store), SurveyedStore):
        return cast(SurveyedStore, store)
    known = _adapted.get(id(store))
    if known is None:
        known = _adapted[id(store)] = AdaptedStore(store)
    return known


# One adapter for each store, so that all its tapes share their session locks. An adapter keeps its store alive, so an
# id in here is never that of another object.
_adapted: "WeakValueDictionary[int, AdaptedStore]" = WeakValueDictionary()


@dataclass
class _Session:
    """What this process knows of one session."""

    local: LocalSession = field(default_factory=LocalSession)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Keeps what is appended as one unit together, where the store takes one entry at a time."""
    generations: dict[str, int] = field(default_factory=dict)
    """Tape of the session → how often it was reset in this process."""
    written: dict[str, int] = field(default_factory=dict)
    """Holder whose merge stopped in the middle → how many entries of its block are on the tape."""
    begun: Commit | None = None
    """The last merge that had sidecars, with these done: what it has to put on the main tape, which names those that
    failed. A repeat goes on with this and not with what it was given."""


class AdaptedStore:
    """A four-method store with forks, receipts, sidecars and resets on top.

    What the store cannot do is done from its entries, so opening a fork reads the tape once. A merge is safe to repeat
    within this process, and by its receipt in any other; it goes on where it stopped (case 94). It is whole only if the
    store's own append of several entries is. Sessions are held within this process, unless the store shares them.
    """

    def __init__(self, store: TapeStore | AsyncTapeStore) -> None:
        """Raises InvalidInput for what lacks one of the four methods."""
        for method in ("list_tapes", "fetch_all", "append", "reset"):
            if not hasattr(store, method):
                raise InvalidInput(f"a {type(store).__name__} is no tape store: it has no `{method}`")
        self._store: Any = store
        self._blocks = not inspect.iscoroutinefunction(store.append)
        kinds = {parameter.kind for parameter in inspect.signature(store.append).parameters.values()}
        self._appends_batches = inspect.Parameter.VAR_POSITIONAL in kinds
        self._resets_whole = "opening" in inspect.signature(store.reset).parameters
        self._sessions: dict[str, _Session] = {}

    def _session(self, tape: str) -> _Session:
        return self._sessions.setdefault(owner_tape(tape), _Session())

    async def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        with _translated():
            return await (asyncio.to_thread(method, *args) if self._blocks else method(*args))

    async def _read(self, tape: str, read: Callable[[Iterable[TapeEntry]], _Answer]) -> _Answer:
        """What `read` makes of all entries of the tape."""
        check_tape_name(tape)
        if isinstance(self._store, ScannedStore):
            with _translated():
                return await asyncio.to_thread(_scan, self._store, tape, read)
        found = await self._fetch(TapeQuery(tape, self))
        return await asyncio.to_thread(read, found) if self._blocks else read(found)

    async def _fetch(self, query: TapeQuery) -> list[TapeEntry]:
        if self._blocks:
            # Listed in the thread: an iterable may do its reading while it is gone through.
            found = await self._call(lambda: list(self._store.fetch_all(query)))
        else:
            found = await self._call(self._store.fetch_all, query)
        return [as_read(entry) for entry in found]

    async def list_tapes(self) -> list[str]:
        """What the store lists, sorted, without sidecars (case 54)."""
        names: Iterable[str] = await self._call(self._store.list_tapes)
        return sorted(name for name in names if SIDECAR_MARKER not in name)

    async def fetch_all(self, query: TapeQuery) -> list[TapeEntry]:
        """The store's entries, answered here, so that a query means the same as everywhere. Raises NotFound."""
        return await self._read(query.tape, lambda entries: answer(query, entries))

    async def fetch_until(self, query: TapeQuery, head: Head) -> list[TapeEntry]:
        """Answer `query` as the tape stood at `head`. Raises NotFound, and Conflict after a reset."""
        self._check_generation(query.tape, head)
        return await self._read(query.tape, lambda entries: answer(query, Until(entries, head)))

    async def outline(self, tape: str, anchors: int, head: Head | None = None) -> Outline:
        """Counts and landmarks of the tape, from all its entries. Raises Conflict after a reset."""
        self._check_generation(tape, head)
        return await self._read(tape, lambda entries: outlined(Until(entries, head), anchors))

    async def newest_first(self, query: TapeQuery, head: Head | None = None) -> AsyncIterator[TapeEntry]:
        """The answer to `query` from its end to its start. Raises NotFound, and Conflict after a reset."""
        self._check_generation(query.tape, head)
        found = await self._read(query.tape, lambda entries: list(answer_newest_first(query, Until(entries, head))))
        for entry in found:
            yield entry

    async def oldest_first(self, tape: str, head: Head | None = None) -> AsyncIterator[TapeEntry]:
        """All entries in order, as the tape stood at `head` if given. Raises Conflict after a reset."""
        self._check_generation(tape, head)
        for entry in await self._read(tape, lambda entries: list(Until(entries, head))):
            yield entry

    async def append(self, tape: str, *entries: TapeEntry) -> list[TapeEntry]:
        """Append entries, as one unit if the store can; return them as stored. Raises InvalidInput with nothing
        written for an entry that cannot be stored."""
        check_tape_name(tape)
        async with self._session(tape).writing:
            return await to_its_end(self._append(tape, entries))

    async def _append(self, tape: str, entries: Sequence[TapeEntry]) -> list[TapeEntry]:
        plain = [TapeEntry.decode(entry.id, entry.encode()) for entry in entries]
        appended: list[TapeEntry] = []
        for batch in [plain] if self._appends_batches and plain else [[entry] for entry in plain]:
            appended += await self._call(self._store.append, tape, *batch) or []
        if len(appended) != len(plain):
            # Bub's stores return nothing: the numbers are on the tape.
            found = await self._fetch(TapeQuery(tape, self))
            appended = found[len(found) - len(plain) :]
        return [as_read(entry) for entry in appended]

    async def head(self, tape: str) -> Head:
        """Where the tape stands now."""
        return replace(await self._read(tape, head_of), generation=self._generation(tape))

    async def chain(self, tape: str, head: Head) -> Chain:
        """The digest chain over what no receipt covers up to `head`. Raises Conflict after a reset."""
        self._check_generation(tape, head)
        return await self._read(tape, lambda entries: uncovered(entries, head))

    async def bootstrap(self, tape: str, entries: Sequence[TapeEntry]) -> bool:
        """Append `entries` if the tape has no anchor yet; whether it did. Raced only within this process."""
        async with self._session(tape).writing:
            if (await self.outline(tape, 1)).anchors:
                return False
            await to_its_end(self._append(tape, entries))
        return True

    @asynccontextmanager
    async def session(self, tape: str, holder: str, wait_s: float) -> AsyncIterator[Grant]:
        """Hold the session for a library fork. Raises SessionBusy if it stays held longer than `wait_s`."""
        session = self._session(check_tape_name(tape)).local
        deadline = asyncio.get_running_loop().time() + wait_s
        async with session.locked(tape, wait_s), self._held_among_processes(tape, deadline):
            yield session.grant(tape, holder)

    @asynccontextmanager
    async def _held_among_processes(self, tape: str, deadline: float) -> AsyncIterator[None]:
        if not isinstance(self._store, SharedStore):
            yield
            return
        while (release := self._store.hold_session(owner_tape(tape))) is None:
            if asyncio.get_running_loop().time() + _SESSION_POLL_S > deadline:
                raise SessionBusy(f"session {tape!r} is held by another process; try again later")
            await asyncio.sleep(_SESSION_POLL_S)
        try:
            yield
        finally:
            release()

    async def commit(self, commit: Commit) -> Receipt:
        """Append the sidecars' blocks, then the block and its receipt, in order; return the receipt as placed.

        May be repeated: it goes on where it stopped, and a holder that has a receipt on the tape gets that. A sidecar
        that fails is left out, and the main tape says so. Raises Fenced if another fork was granted the session since,
        Conflict if the tape was reset or got another receipt, with nothing written; what the store raises.
        """
        grant, session = commit.grant, self._session(commit.grant.tape)
        placed = await self._read(grant.tape, lambda entries: receipt_of(grant.holder, entries))
        if placed is not None:
            return placed
        session.local.check(grant)
        if session.begun is not None and session.begun.grant == grant:
            commit = session.begun
        elif grant.holder not in session.written:
            self._check_generation(grant.tape, commit.main.head)
            await self._check_receipt(commit)
            if commit.sidecars:
                commit = await to_its_end(self._without_sidecars(commit, session))
        async with session.writing:
            await to_its_end(self._take(commit.main, session, grant.holder, commit.receipt.entry()))
        placed = await self._read(grant.tape, lambda entries: receipt_of(grant.holder, entries))
        if placed is None:
            raise Conflict(f"the receipt of {grant.holder!r} is not on tape {grant.tape!r} any more")
        session.written.pop(grant.holder, None)
        session.begun = None
        return placed

    async def _check_receipt(self, commit: Commit) -> None:
        head = await self.head(commit.grant.tape)
        if head.digest != commit.main.head.digest:
            raise Conflict(f"tape {commit.grant.tape!r} got another receipt meanwhile; nothing was written")

    async def _without_sidecars(self, commit: Commit, session: _Session) -> Commit:
        """Append the sidecars' blocks; what is left of the commit, in which the main tape says which of them failed."""
        for sidecar in commit.sidecars:
            try:
                self._check_generation(sidecar.tape, sidecar.head)
                await self._take(sidecar, _Session(), commit.grant.holder)
            except Exception as error:  # a sidecar that fails never blocks the main tape
                commit = commit.without(sidecar, f"{type(error).__name__}: {error}")
        session.begun = replace(commit, sidecars=())
        return session.begun

    async def _take(self, delta: Delta, session: _Session, holder: str, *last: TapeEntry) -> None:
        """Append a fork's block, from where an earlier try stopped."""
        entries = [*(TapeEntry.decode(0, stored) for stored in delta.block.entries), *last]
        if delta.opening is not None and holder not in session.written:
            later = await self._read(delta.tape, lambda found: [entry for entry in found if entry.id > delta.head.last])
            await self._restart(delta.tape, [*entries[: delta.opening], *later])
            session.written[holder] = delta.opening
        done = session.written.setdefault(holder, 0)
        if self._appends_batches:
            await self._append(delta.tape, entries[done:])
            return
        for place in range(done, len(entries)):
            await self._call(self._store.append, delta.tape, entries[place])
            session.written[holder] = place + 1

    async def _restart(self, tape: str, opening: Sequence[TapeEntry]) -> None:
        if self._resets_whole:
            await self._call(self._store.reset, tape, opening)
        else:
            await self._call(self._store.reset, tape)
            await self._append(tape, opening)
        self._session(tape).generations[tape] = self._generation(tape) + 1

    async def append_fenced(self, grant: Grant, tape: str, head: Head, entries: Sequence[TapeEntry]) -> Head:
        """Append to a sidecar at once; where it stands then. Raises InvalidInput, Fenced, Conflict after a reset."""
        self._session(grant.tape).local.check(grant)
        self._check_generation(tape, head)
        await self.append(tape, *entries)
        return await self.head(tape)

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
        """Empty the tape and its sidecars' and begin it anew; see `CommitStore.reset`.

        One step only where the store's own reset takes an `opening`. `force` does not reach into other processes.
        """
        if force:
            self._session(tape).local.seize()
        async with self.session(tape, f"reset-{secrets.token_hex(4)}", wait_s):
            self._check_generation(tape, seen)
            unfit: dict[str, str] = {}
            for sidecar in sidecars:
                try:
                    await to_its_end(self._restart(sidecar, ()))
                except Exception as error:  # a sidecar that fails never blocks the main tape
                    unfit[sidecar] = f"{type(error).__name__}: {error}"
            head = await self.head(tape)
            later: list[TapeEntry] = []
            if seen is not None:
                later = await self._read(tape, lambda found: [entry for entry in found if entry.id > seen.last])
            entries = [*opening, *reopened(head), *reset_events(sidecars, unfit), *later]
            await to_its_end(self._restart(tape, entries))

    async def delete(self, tape: str, *, wait_s: float = 0.0) -> None:
        """Remove the tape for good; its sidecars are tapes of their own to the store. Raises SessionBusy."""
        async with self.session(tape, f"delete-{secrets.token_hex(4)}", wait_s):
            await to_its_end(self._restart(tape, ()))

    def _generation(self, tape: str) -> int:
        return self._session(tape).generations.get(tape, 0)

    def _check_generation(self, tape: str, head: Head | None) -> None:
        if head is not None and self._generation(tape) != head.generation:
            raise Conflict(f"tape {tape!r} was reset meanwhile; open it again")


def _scan(store: ScannedStore, tape: str, read: Callable[[Iterable[TapeEntry]], _Answer]) -> _Answer:
    with store.entries(tape) as entries:
        return read(entries)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise what a store of Bub raises as ours: the kind of the error has the same value there (case 24)."""
    try:
        yield
    except BubError:
        raise
    except Exception as error:
        kind = getattr(error, "kind", None)
        if kind == ErrorKind.NOT_FOUND:
            raise NotFound(str(error)) from error
        if kind == ErrorKind.INVALID_INPUT:
            raise InvalidInput(str(error)) from error
        raise
