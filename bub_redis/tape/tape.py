"""A tape as an application holds it: a name, a store, and how its entries become context."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bub_redis.errors import InvalidInput, NotFound
from bub_redis.tape.context import LAST_ANCHOR, TapeContext, default_tape_context
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.fork import Fork
from bub_redis.tape.names import check_tape_name, session_tape_name
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.receipt import Status
from bub_redis.tape.store import SESSION_WAIT_S, AsyncTapeStore, CommitStore

BOOTSTRAP_ANCHOR = "session/start"


def handoff_entries(name: str, state: Mapping[str, Any] | None = None) -> list[TapeEntry]:
    """The two entries of a handoff, for one batch: the anchor and the `handoff` event."""
    data = {"name": name} | ({} if state is None else {"state": dict(state)})
    return [TapeEntry.anchor(name, state), TapeEntry.event("handoff", data)]


@dataclass(frozen=True)
class Tape:
    """The facts of one session, in order, append-only. Cheap to make: nothing is read before it is asked for."""

    name: str
    store: AsyncTapeStore = field(repr=False)
    context: TapeContext = field(default_factory=default_tape_context, repr=False)

    def __post_init__(self) -> None:
        check_tape_name(self.name)

    def scoped(self, name: str) -> "Tape":
        """Another tape of the same store with the same context."""
        return replace(self, name=name)

    def session_tape(self, session_id: str, workspace: Path | None = None) -> "Tape":
        """The tape of a session, by itself or in a workspace. Raises InvalidInput for an id no session may have."""
        return self.scoped(session_tape_name(session_id, workspace))

    def query(self) -> TapeQuery:
        """A question to this tape: `await tape.query().last_anchor().kinds("message").all()`."""
        return TapeQuery(self.name, self.store)

    async def append(self, *entries: TapeEntry) -> list[TapeEntry]:
        """Append entries as one unit and return them numbered. Raises InvalidInput with nothing written, Outage."""
        return await self.store.append(self.name, *entries)

    async def append_event(self, name: str, data: Mapping[str, Any] | None = None, **meta: Any) -> TapeEntry:
        """Append an event `{"name", "data"}`; with `context=False` no view ever shows it."""
        return (await self.append(TapeEntry.event(name, data, **meta)))[0]

    async def handoff(self, *, name: str, state: Mapping[str, Any] | None = None) -> list[TapeEntry]:
        """Write an anchor and a `handoff` event, both or none; the next context starts after the anchor."""
        return await self.append(*handoff_entries(name, state))

    async def read_messages(self) -> list[Any]:
        """The messages of the next model call, as this tape's context selects them.

        A tape without any anchor is read from its start (case 82). Raises NotFound if the context names an anchor
        that is missing, Outage if the store does not answer.
        """
        query = self.context.build_query(self.query())
        try:
            entries = await query.all()
        except NotFound:
            if self.context.anchor is not LAST_ANCHOR:
                raise
            entries = await query.without_anchor().all()
        return await self.context.messages(entries)

    async def ensure_bootstrap_anchor(self) -> None:
        """Hand off to `session/start` if the tape has no anchor yet: exactly once, whoever races (case 100)."""
        entries = handoff_entries(BOOTSTRAP_ANCHOR, {"owner": "human"})
        if isinstance(self.store, CommitStore):
            await self.store.bootstrap(self.name, entries)
            return
        try:
            await self.query().last_anchor().limit(0).all()
        except NotFound:
            await self.append(*entries)

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
        if not isinstance(self.store, CommitStore):
            raise InvalidInput(f"a {type(self.store).__name__} cannot be forked: it has no commit")
        async with self.store.session(self.name, run_id or secrets.token_hex(8), wait_s) as grant:
            fork = await Fork.open(self.store, grant)
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
                if merge_back and fork.entries:
                    await fork.merge(status, error=error)
