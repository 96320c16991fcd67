"""A tape as an application holds it: a name, a store, and how its entries become context."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from bub_redis.errors import Conflict, InvalidInput, NotFound, Outage
from bub_redis.tape.adapter import adapted
from bub_redis.tape.archive import Archive
from bub_redis.tape.context import TapeContext, default_tape_context
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.fork import Fork
from bub_redis.tape.info import AnchorSummary, Outline, TapeInfo
from bub_redis.tape.lifecycle import Lifecycle
from bub_redis.tape.names import check_tape_name, session_tape_name
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.receipt import Status
from bub_redis.tape.search import distinct
from bub_redis.tape.shielded import to_its_end
from bub_redis.tape.sidecar import TapeSidecar, reset_event, sidecar_tape_name
from bub_redis.tape.store import SESSION_WAIT_S, AsyncTapeStore, has_commit

BOOTSTRAP_ANCHOR = "session/start"


def handoff_entries(name: str, state: Mapping[str, Any] | None = None, **meta: Any) -> list[TapeEntry]:
    """The two entries of a handoff, for one batch: the anchor and the `handoff` event."""
    data = {"name": name} | ({} if state is None else {"state": dict(state)})
    return [TapeEntry.anchor(name, state, **meta), TapeEntry.event("handoff", data, **meta)]


@dataclass(frozen=True)
class Tape:
    """The facts of one session, in order, append-only. Cheap to make: nothing is read before it is asked for."""

    name: str
    store: AsyncTapeStore = field(repr=False)
    context: TapeContext = field(default_factory=default_tape_context, repr=False)
    sidecars: Sequence[TapeSidecar] = field(default=(), repr=False)
    """Sibling tapes that are forked, merged, archived and reset with this one."""

    def __post_init__(self) -> None:
        check_tape_name(self.name)
        names = [sidecar.name for sidecar in self.sidecars]
        if len(set(names)) < len(names):
            raise InvalidInput(f"each sidecar needs a name of its own, not {', '.join(names)}")
        object.__setattr__(self, "store", adapted(self.store))

    def scoped(self, name: str) -> "Tape":
        """Another tape of the same store with the same context."""
        return replace(self, name=name)

    def session_tape(self, session_id: str, workspace: Path | None = None) -> "Tape":
        """The tape of a session, by itself or in a workspace. Raises InvalidInput for an id no session may have."""
        return self.scoped(session_tape_name(session_id, workspace))

    def get_sidecar(self, name: str) -> TapeSidecar | None:
        """The sidecar that is mounted under this name; None if none is."""
        return next((sidecar for sidecar in self.sidecars if sidecar.name == name), None)

    def sidecar_tape_name(self, name: str) -> str:
        """The name of a mounted sidecar's tape. Raises NotFound if none of this name is mounted."""
        if self.get_sidecar(name) is None:
            raise NotFound(f"tape {self.name!r} has no sidecar {name!r}")
        return sidecar_tape_name(self.name, name)

    def query(self) -> TapeQuery:
        """A question to this tape: `await tape.query().last_anchor().kinds("message").all()`."""
        return TapeQuery(self.name, self.store)

    async def append(self, *entries: TapeEntry) -> list[TapeEntry]:
        """Append entries as one unit and return them numbered.

        Raises InvalidInput or TapeBlocked with nothing written, Outage when the outcome is unknown.
        """
        return await self.store.append(self.name, *entries)

    async def append_event(self, name: str, data: Mapping[str, Any] | None = None, **meta: Any) -> TapeEntry:
        """Append an event `{"name", "data"}`; with `context=False` no view ever shows it.

        Raises InvalidInput or TapeBlocked with nothing written, Outage when the outcome is unknown.
        """
        return (await self.append(TapeEntry.event(name, data, **meta)))[0]

    async def handoff(self, *, name: str, state: Mapping[str, Any] | None = None) -> list[TapeEntry]:
        """Write an anchor and a `handoff` event, both or none; the next context starts after the anchor.

        Raises InvalidInput or TapeBlocked with nothing written, Outage when the outcome is unknown.
        """
        return await self.append(*handoff_entries(name, state))

    async def read_messages(self) -> list[Any]:
        """The messages of the next model call, as this tape's context selects them.

        A tape without any anchor is read from its start (case 82). Raises NotFound if the context names an anchor
        that is missing, Outage if the store does not answer.
        """
        return await self.context.messages(await self.context.entries(self.query()))

    async def info(self) -> TapeInfo:
        """The tape in numbers, in a constant number of round trips on Redis. Raises Outage."""
        return (await self._outline(1)).info(self.name)

    async def anchors(self, limit: int = 20) -> list[AnchorSummary]:
        """Name and state of the newest `limit` anchors, in order. Raises InvalidInput below 0, Outage."""
        if limit < 0:
            raise InvalidInput(f"a limit is 0 or more anchors, not {limit}")
        return (await self._outline(limit)).summaries()

    async def last_usage(self) -> TapeEntry | None:
        """The last `run` event that tells token usage, in its payload's `data.usage`; None if none did (case 17)."""
        return (await self._outline(0)).usage

    async def _outline(self, anchors: int) -> Outline:
        return await adapted(self.store).outline(self.name, anchors)

    async def search(self, query: str | TapeQuery, limit: int = 20) -> list[TapeEntry]:
        """The newest `limit` entries that hold a text, newest first, each payload once (case 35).

        A blank text finds nothing; see `TapeQuery.query` for what is searched. A query, of this tape, may also ask for
        anchors, dates and kinds, and its own limit counts too. The answer is all that was found up to the limit: its
        length is the number to tell (cases 8 and 46). A rare text means reading the tape to its start, in pages. Raises
        NotFound for a missing anchor, InvalidInput for dates that are none, Conflict if the tape is reset meanwhile,
        Outage.
        """
        if isinstance(query, str):
            if not query.strip():
                return []
            query = self.query().query(query)
        wanted = limit if query._limit is None else min(limit, query._limit)
        return await distinct(adapted(self.store).newest_first(query), wanted)

    async def ensure_bootstrap_anchor(self) -> None:
        """Hand off to `session/start` if the tape has no anchor yet: exactly once, whoever races (case 100).

        May be repeated. Raises TapeBlocked, Outage.
        """
        entries = handoff_entries(BOOTSTRAP_ANCHOR, {"owner": "human"})
        if has_commit(self.store):
            await self.store.bootstrap(self.name, entries)
            return
        try:
            await self.query().last_anchor().limit(0).all()
        except NotFound:
            await self.append(*entries)

    async def reset(
        self,
        *,
        state: Mapping[str, Any] | None = None,
        keep_sidecars: Iterable[str] = (),
        archive_to: Path | None = None,
        keep_archives: timedelta | None = None,
        force: bool = False,
        wait_s: float = 0.0,
    ) -> Path | None:
        """Empty the tape and its sidecars and begin it anew with `session/start`, in one step.

        `state` is added to that of the anchor. With `archive_to` the tape is written to a file of that folder first,
        which is returned and named in the anchor's state as `archived` (case 29); each sidecar has a file of its own,
        and one that cannot be archived is not reset (case 99). `keep_archives` removes archives of this tape whose last
        entry is older. In a fork nothing outside changes before the merge (case 7).

        Holds the session meanwhile, for which it waits `wait_s`; `force` takes it from whoever holds it. Raises
        SessionBusy naming the turn that holds the session or is open on it, Conflict, InvalidInput, TapeBlocked and
        Outage with nothing changed.
        """
        lifecycle, kept = self._lifecycle(), tuple(keep_sidecars)

        def opening(archived: Path | None) -> list[TapeEntry]:
            named = {} if archived is None else {"archived": str(archived)}
            return handoff_entries(BOOTSTRAP_ANCHOR, {"owner": "human", **(state or {}), **named})

        if archive_to is None:
            await lifecycle.reset(opening(None), kept=kept, force=force, wait_s=wait_s)
            return None
        archive = Archive(archive_to, keep_archives)
        return await lifecycle.reset_archived(archive, opening, kept=kept, force=force, wait_s=wait_s)

    async def archive(self, directory: Path, *, keep: timedelta | None = None) -> Path:
        """Write the tape, and each sidecar, to a file of that folder; return the tape's, `<name>.jsonl.<moment>.bak`.

        A sidecar's outcome is recorded as the event `sidecar.archive`; one that fails stops nothing. Archives are kept
        for good unless `keep` removes those of this tape whose last entry is older. Raises Outage if the tape cannot be
        read, or the file not be written: no file is left then.
        """
        path, events = await self._lifecycle().archive(Archive(directory, keep))
        if events:
            await self.append(*events)
        return path

    async def archive_sidecar(self, name: str, directory: Path, *, keep: timedelta | None = None) -> Path | None:
        """Write one sidecar to a file of that folder and record it; the file, or None if it failed.

        Raises NotFound if no sidecar of that name is mounted; Outage if the outcome cannot be recorded.
        """
        self.sidecar_tape_name(name)
        path, event = await self._lifecycle().archive_sidecar(Archive(directory, keep), name, "manual")
        await self.append(event)
        return path

    async def reset_sidecar(self, name: str, *, reason: str = "gc", wait_s: float = 0.0) -> bool:
        """Empty one sidecar and record it; whether it could be.

        Raises NotFound if no sidecar of that name is mounted, SessionBusy with nothing changed; Outage if the outcome
        cannot be recorded.
        """
        try:
            await self._lifecycle().reset_sidecar(self.sidecar_tape_name(name), wait_s)
        except (Conflict, Outage) as error:
            await self.append(reset_event(name, "error", reason, error=str(error)))
            return False
        await self.append(reset_event(name, "ok", reason))
        return True

    def _lifecycle(self) -> Lifecycle:
        return Lifecycle(adapted(self.store), self.name, [sidecar.name for sidecar in self.sidecars])

    @asynccontextmanager
    async def fork_tape(
        self, merge_back: bool = True, *, run_id: str | None = None, wait_s: float = SESSION_WAIT_S
    ) -> AsyncIterator["Tape"]:
        """Work on a copy: what is appended inside becomes visible at the end, all at once, or not at all.

        Holds the session meanwhile. On normal exit, on an exception and on cancellation the delta is merged with
        every open call closed; `merge_back=False` drops it. `run_id` names the commit: one that was merged before is
        not merged again. Raises SessionBusy if the session stays held longer than `wait_s`, Fenced if it was lost
        meanwhile, InvalidInput where the store cannot commit.
        """
        if not has_commit(self.store):
            raise InvalidInput(f"a {type(self.store).__name__} cannot be forked: it has no commit")
        async with self.store.session(self.name, run_id or secrets.token_hex(8), wait_s) as grant:
            tapes = [sidecar_tape_name(self.name, sidecar.name) for sidecar in self.sidecars]
            fork = await Fork.open(self.store, grant, head=grant.head, sidecars=tapes, writes_ahead=merge_back)
            status: Status = "completed"
            error: str | None = None
            try:
                yield replace(self, store=fork)
            except (asyncio.CancelledError, GeneratorExit):  # the latter: a stream that was closed early
                status = "cancelled"
                raise
            except BaseException as exception:
                status, error = "failed", f"{type(exception).__name__}: {exception}"
                raise
            finally:
                if merge_back and fork.changed:
                    await to_its_end(fork.merge(status, error=error))
