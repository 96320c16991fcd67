"""Forks: an in-memory overlay over a tape, and its merge, which is the one commit point of a turn or run.

Nothing of a fork is visible on the tape before its merge. A fork that is not merged leaves no trace.
"""

from collections.abc import Mapping
from typing import Any

from bub_redis.errors import NotFound
from bub_redis.tape.context import INTERRUPTED
from bub_redis.tape.entry import StoredEntry, TapeEntry
from bub_redis.tape.query import TapeQuery, answer
from bub_redis.tape.receipt import Chain, Receipt, Status
from bub_redis.tape.store import Commit, CommitStore, Grant, Head


class Fork:
    """The tape of one session as a turn sees it: the parent as of opening, and what the turn appended since.

    A store like any other: reads answer as if parent and overlay were one tape, appends stay in the overlay. Other
    tapes pass through to the parent store. Ids of overlay entries are provisional until the merge.
    """

    def __init__(self, store: CommitStore, grant: Grant, head: Head, chain: Chain) -> None:
        self._store = store
        self.grant = grant
        self._head = head
        self._chain = chain
        self._stored: list[StoredEntry] = []
        self._entries: list[TapeEntry] = []

    @classmethod
    async def open(cls, store: CommitStore, grant: Grant) -> "Fork":
        """Open a fork of the granted session's tape as it stands now. Raises Outage; Conflict if reset meanwhile."""
        head = await store.head(grant.tape)
        return cls(store, grant, head, await store.chain(grant.tape, head))

    @property
    def entries(self) -> list[TapeEntry]:
        """What the overlay holds, in order."""
        return list(self._entries)

    async def list_tapes(self) -> list[str]:
        """The parent store's tapes."""
        return await self._store.list_tapes()

    async def fetch_all(self, query: TapeQuery) -> list[TapeEntry]:
        """Answer as one tape that holds parent and overlay.

        Raises NotFound for a missing anchor and Outage if the parent does not answer: an outage is never an empty
        parent (case 92).
        """
        if query.tape != self.grant.tape:
            return list(await self._store.fetch_all(query))
        if query.wants_anchor:
            try:
                return answer(query, self._entries)
            except NotFound:
                pass
        before = await self._store.fetch_until(query, self._head)
        return answer(query.without_anchor(), [*before, *self._entries])

    async def append(self, tape: str, *entries: TapeEntry) -> list[TapeEntry]:
        """Append to the overlay; to the store itself for any other tape. Raises InvalidInput with nothing appended."""
        if tape != self.grant.tape:
            return await self._store.append(tape, *entries)
        stored = [entry.encode() for entry in entries]
        first = self._head.last + len(self._stored) + 1
        decoded = [TapeEntry.decode(first + place, value) for place, value in enumerate(stored)]
        self._stored.extend(stored)
        self._entries.extend(decoded)
        return decoded

    async def merge(self, status: Status, *, error: str | None = None, attempt: int = 1) -> Receipt:
        """Append the overlay and a receipt to the tape, whole, once. Open calls are closed as interrupted.

        May be repeated until it returns: the first that succeeded counts. Raises Fenced, Conflict or TapeBlocked
        with nothing written, Outage when the outcome is unknown.
        """
        return await self._store.commit(await self.prepare(status, error=error, attempt=attempt))

    async def prepare(self, status: Status, *, error: str | None = None, attempt: int = 1) -> Commit:
        """What `merge` commits, for a caller that adds to the commit: the overlay with every open call closed."""
        await self._close_open_calls()
        receipt = Receipt(
            turn=self.grant.holder,
            attempt=attempt,
            status=status,
            error=error,
            steers=0,
            answer=self._answer_place(),
            token=self.grant.token,
            usage=self._usage(),
            seen=self._head.last,
            entries=len(self._stored),
            digest=self._chain.copy().add(self._stored).hexdigest(),
        )
        anchors = [
            (place, name) for place, entry in enumerate(self._entries) if (name := entry.anchor_name) is not None
        ]
        return Commit(self.grant, self._head, tuple(self._stored), anchors, receipt)

    async def _close_open_calls(self) -> None:
        open_ids: list[str] = []
        for entry in self._entries:
            if entry.kind == "tool_call":
                open_ids += [call["id"] for call in entry.payload["calls"]]
            elif entry.kind == "tool_result":
                for call_id in entry.payload.get("call_ids", ()):
                    if call_id in open_ids:
                        open_ids.remove(call_id)
        if open_ids:
            results = [INTERRUPTED] * len(open_ids)
            await self.append(self.grant.tape, TapeEntry.tool_result(results, open_ids, interrupted=True))

    def _answer_place(self) -> int | None:
        for place in range(len(self._entries) - 1, -1, -1):
            entry = self._entries[place]
            if entry.kind == "message" and entry.payload.get("role") == "assistant":
                return place
        return None

    def _usage(self) -> Mapping[str, Any] | None:
        """The tokens of all model calls in the overlay, added up; None if no provider told any (cases 17 and 19)."""
        total: dict[str, int] = {}
        for entry in self._entries:
            if entry.kind != "event" or entry.payload.get("name") != "run":
                continue
            usage = entry.payload["data"].get("usage") or {}
            for key, value in usage.items():
                if isinstance(value, int) and not isinstance(value, bool):
                    total[key] = total.get(key, 0) + value
        return total or None
