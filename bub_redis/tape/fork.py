"""Forks: an in-memory overlay over a tape, and its merge, which is the one commit point of a turn or run.

Nothing of a fork is visible on the tape before its merge. A fork that is not merged leaves no trace.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Self

from bub_redis.errors import Outage
from bub_redis.tape.block import Block
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.info import Outline, told_counts
from bub_redis.tape.joined import JoinedTape
from bub_redis.tape.overlay import Overlay
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.receipt import Chain, Receipt, Status
from bub_redis.tape.replay import INTERRUPTED, open_call_ids
from bub_redis.tape.sidecar import reset_events
from bub_redis.tape.store import Commit, CommitStore, Grant, Head, reopened


class Fork:
    """The tape of one session as a turn sees it: the parent as of opening, and what the turn appended since.

    A store like any other: reads answer as if parent and overlay were one tape, appends stay in the overlay. Other
    tapes pass through to the parent store. Ids of overlay entries are provisional until the merge.
    """

    def __init__(
        self,
        store: CommitStore,
        grant: Grant,
        head: Head,
        chain: Chain,
        *,
        sidecars: Iterable[str] = (),
        writes_ahead: bool = True,
    ) -> None:
        self._store = store
        self.grant = grant
        self._chain = chain
        self._main = Overlay(grant.tape, head)
        self._sidecar_names = frozenset(sidecars)
        self._sidecars: dict[str, Overlay] = {}
        self._writes_ahead = writes_ahead
        self._ahead_lock = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        store: CommitStore,
        grant: Grant,
        *,
        head: Head | None = None,
        sidecars: Iterable[str] = (),
        writes_ahead: bool = True,
    ) -> Self:
        """Open a fork of the granted session's tape as it stands now, or at `head`, read since the session was granted.

        `sidecars` are the names of the sidecars' tapes that are forked with it; they are read when first used.
        `writes_ahead=False` for a fork that will not be merged: nothing of it may reach the store. Raises Outage;
        Conflict if reset meanwhile.
        """
        if head is None:
            head = await store.head(grant.tape)
        chain = await store.chain(grant.tape, head)
        return cls(store, grant, head, chain, sidecars=sidecars, writes_ahead=writes_ahead)

    async def _overlay(self, tape: str) -> Overlay | None:
        """What this fork holds of the tape; None for one that is not its own."""
        if tape == self.grant.tape:
            return self._main
        if tape in self._sidecar_names and tape not in self._sidecars:
            head = await self._store.head(tape)
            self._sidecars.setdefault(tape, Overlay(tape, head))
        return self._sidecars.get(tape)

    @property
    def generation(self) -> int:
        """The generation of the parent as this fork sees it."""
        return self._main.head.generation

    @property
    def last_receipt(self) -> str:
        """The stream id of the last receipt on the parent as this fork sees it; empty before the first."""
        return self._main.head.receipt

    def holds(self, tape: str) -> bool:
        """Whether the tape is forked here, so that its entries stay in an overlay until the merge."""
        return tape == self.grant.tape or tape in self._sidecar_names

    @property
    def entries(self) -> list[TapeEntry]:
        """What the overlay of the main tape holds, in order."""
        return list(self._main.entries)

    @property
    def changed(self) -> bool:
        """Whether there is anything to merge, on the tape or a sidecar."""
        return self._main.changed or any(overlay.changed for overlay in self._sidecars.values())

    async def list_tapes(self) -> list[str]:
        """The parent store's tapes."""
        return await self._store.list_tapes()

    async def fetch_all(self, query: TapeQuery) -> list[TapeEntry]:
        """Answer as one tape that holds parent and overlay.

        Raises NotFound for a missing anchor and Outage if the parent does not answer: an outage is never an empty
        parent (case 92).
        """
        overlay = await self._overlay(query.tape)
        if overlay is None:
            return list(await self._store.fetch_all(query))
        return await JoinedTape(self._store, overlay).fetch_all(query)

    async def outline(self, tape: str, anchors: int, head: Head | None = None) -> Outline:
        """Counts and landmarks as this fork sees the tape; `head` is for other tapes. Raises Conflict, Outage."""
        overlay = await self._overlay(tape)
        if overlay is None:
            return await self._store.outline(tape, anchors, head)
        return await JoinedTape(self._store, overlay).outline(anchors)

    async def newest_first(self, query: TapeQuery, head: Head | None = None) -> AsyncIterator[TapeEntry]:
        """The answer to `query` from its end to its start; `head` is for other tapes. Raises as `fetch_all` does."""
        overlay = await self._overlay(query.tape)
        found = (
            self._store.newest_first(query, head)
            if overlay is None
            else JoinedTape(self._store, overlay).newest_first(query)
        )
        async for entry in found:
            yield entry

    async def append(self, tape: str, *entries: TapeEntry) -> list[TapeEntry]:
        """Append to the overlay; to the store itself for any other tape.

        Raises InvalidInput with nothing appended, and Outage with nothing appended where a sidecar, used for the first
        time, cannot be looked at; for any other tape what the store raises.
        """
        overlay = await self._overlay(tape)
        if overlay is None:
            return await self._store.append(tape, *entries)
        return overlay.append(entries)

    async def append_ahead(self, tape: str, *entries: TapeEntry) -> None:
        """Write entries to a sidecar now, under the fence, before the merge that makes them count.

        For bulk that must neither be held in memory nor be merged at once; entries that are never followed by what
        makes them count stay behind. A fork that will not be merged, or that reset the sidecar, keeps them in its
        overlay. Raises InvalidInput, Fenced, Conflict after a reset of the sidecar, TapeBlocked, Outage.
        """
        overlay = await self._overlay(tape)
        if overlay is None or overlay is self._main or not self._writes_ahead or overlay.opening is not None:
            await self.append(tape, *entries)
            return
        async with self._ahead_lock:
            overlay.advance(await self._store.append_fenced(self.grant, tape, overlay.head, entries))

    async def reset(self, tape: str, opening: Sequence[TapeEntry] = (), *, sidecars: Sequence[str] = ()) -> None:
        """Empty the tape and its sidecars' as this fork sees them, and begin it anew; at once for any other tape.

        The parent is reset by the merge, which keeps what others appended meanwhile (cases 7, 44 and 96). Raises
        InvalidInput with nothing changed, and Outage with nothing changed where a sidecar, used for the first time,
        cannot be looked at; for any other tape what the store raises.
        """
        overlay = await self._overlay(tape)
        if overlay is None:
            await self._store.reset(tape, opening, sidecars=sidecars)
            return
        entries = [*opening, *reopened(overlay.head), *reset_events(sidecars, {})]
        Block.of(entries)  # refuses what cannot be stored before anything is forgotten
        for sidecar in filter(None, [await self._overlay(name) for name in sidecars]):
            sidecar.clear()
        overlay.clear()
        if overlay is self._main:
            # What the reset takes away is in no receipt: the chain goes on from the last one.
            self._chain = Chain(overlay.head.digest)
        # Not by way of `append`, which awaits: until `opened`, what anybody else appends would belong to the reset.
        overlay.append(entries)
        overlay.opened()

    async def ensure_sidecars(self) -> None:
        """Raise Outage if a sidecar lost what this fork saw of it or wrote ahead, as where its server went back."""
        # Nothing is written ahead meanwhile, which would move what was seen.
        async with self._ahead_lock:
            for overlay in [*self._sidecars.values()]:
                seen = overlay.head
                now = await self._store.head(overlay.tape)
                if (now.generation, now.last) >= (seen.generation, seen.last):
                    continue
                # No Conflict: in the agent's work that would be the turn's own end, and not handed back.
                raise Outage(f"tape {overlay.tape!r} lost what was seen of it: its server went back to an older copy")

    async def merge(self, status: Status, *, error: str | None = None, attempt: int = 1) -> Receipt:
        """Append the overlay and a receipt to the tape, whole, once. Open calls are closed as interrupted.

        May be repeated until it returns: the first that succeeded counts. Raises Fenced, Conflict or TapeBlocked
        with nothing written, Outage when the outcome is unknown.
        """
        return await self._store.commit(await self.prepare(status, error=error, attempt=attempt))

    async def prepare(self, status: Status, *, error: str | None = None, attempt: int = 1) -> Commit:
        """What `merge` commits, for a caller that adds to the commit: the overlay with every open call closed."""
        await self._close_open_calls()
        main = self._main.delta()
        opening = main.opening or 0
        answer_place = self._answer_place()
        receipt = Receipt(
            turn=self.grant.holder,
            attempt=attempt,
            status=status,
            error=error,
            steers=0,
            answer=None if answer_place is None or answer_place < opening else answer_place - opening,
            token=self.grant.token,
            usage=self._usage(),
            # After a reset the fork has seen nothing but what the reset itself wrote.
            seen=main.head.last if main.opening is None else opening,
            entries=len(main.block) - opening,
            digest=self._chain.copy().add(main.block.entries).hexdigest(),
        )
        sidecars = tuple(overlay.delta() for overlay in self._sidecars.values() if overlay.changed)
        return Commit(self.grant, main, receipt, self._chain, sidecars)

    async def _close_open_calls(self) -> None:
        if open_ids := open_call_ids(self._main.entries):
            results = [INTERRUPTED] * len(open_ids)
            await self.append(self.grant.tape, TapeEntry.tool_result(results, open_ids, interrupted=True))

    def _answer_place(self) -> int | None:
        for place in range(len(self._main.entries) - 1, -1, -1):
            entry = self._main.entries[place]
            if entry.kind == "message" and entry.payload.get("role") == "assistant":
                return place
        return None

    def _usage(self) -> Mapping[str, Any] | None:
        """The tokens of all model calls in the overlay, added up; None if no provider told any (cases 17 and 19)."""
        total: Counter[str] = Counter()
        for entry in self._main.entries:
            total.update(told_counts(entry))
        return dict(total) or None
