"""The fork of a worker's turn: its overlay is logged in the turn's journal, from which the next attempt refills it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from bub_redis.storage.journal import Journal, LostEnd, Record
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.fork import Fork
from bub_redis.tape.receipt import LOST_TAIL_EVENT
from bub_redis.tape.stream_id import StreamId

log = structlog.get_logger(__name__)

_BEGUN = "begun"
_RESET = "reset"

Note = tuple[str, dict[str, Any]]


class TurnFork(Fork):
    """A fork that logs every change of its overlay, in order. `flush` makes durable what was logged."""

    _journal: Journal | None = None
    stopped: Callable[[], bool] = staticmethod(lambda: False)
    """Whether the run was told to stop."""

    async def replay(self, journal: Journal) -> list[Note]:
        """Refill the overlay from `journal`, and log in it from now on; kind and data of the notes found there.

        A journal that was begun before the tape was reset is of no use any more and is passed over. Raises Outage.
        """
        notes: list[Note] = []
        generation = self.generation
        begun = -1
        for record in await journal.read():
            if record.tape is None and record.kind == _BEGUN:
                begun = record.data["generation"]
            elif begun != generation:
                continue
            elif record.tape is not None:
                await super().append(record.tape, TapeEntry.decode(0, record.stored))
            elif record.kind == _RESET:
                opening = [TapeEntry(0, *each) for each in record.data["opening"]]
                await super().reset(record.data["tape"], opening, sidecars=record.data["sidecars"])
            else:
                notes.append((record.kind, record.data))
        self._journal = journal
        self._logged: list[Record] = []
        self._flushing = asyncio.Lock()
        if begun != generation:
            self.note(_BEGUN, {"generation": generation})
        return notes

    async def append(self, tape: str, *entries: TapeEntry) -> list[TapeEntry]:
        """Append to the overlay and to the log; to the store itself for any other tape. Raises as in Fork."""
        appended = await super().append(tape, *entries)
        if self._journal and self.holds(tape):
            self._logged += [Record(tape, entry.encode()) for entry in appended]
        return appended

    async def reset(self, tape: str, opening: Sequence[TapeEntry] = (), *, sidecars: Sequence[str] = ()) -> None:
        """Empty the tape and its sidecars' as this fork sees them, and log that; at once for any other tape.

        Raises InvalidInput with nothing changed, and Outage with nothing changed where a sidecar, used for the first
        time, cannot be looked at; for any other tape what the store raises.
        """
        # What begins the tape anew is part of this one record: it is not appended by way of `append`. And nothing is
        # awaited once the tape is emptied, so the log has the record where it belongs.
        await super().reset(tape, opening, sidecars=sidecars)
        if self.holds(tape):
            written = [[entry.kind, dict(entry.payload), dict(entry.meta), entry.date] for entry in opening]
            self.note(_RESET, {"tape": tape, "opening": written, "sidecars": list(sidecars)})

    def note(self, kind: str, data: dict[str, Any]) -> None:
        """Log what a later attempt must know beside the entries. Raises InvalidInput if it is not JSON."""
        if self._journal:
            self._logged.append(Record.note(kind, data))

    async def tell_lost_tail(self, receipt_id: str, digest: str) -> None:
        """Record that the tape lost what stood up to a receipt that others were shown: a fail-over to an old copy.

        What is there is whole, and goes on from there; the event says that it is not all that there was.
        """
        known = self.last_receipt
        if receipt_id and StreamId.of(known) < StreamId.of(receipt_id):
            log.error("tape.tail_lost", last=known, shown=receipt_id)
            data = {"receipt": receipt_id, "digest": digest, "found": known}
            await self.append(self.grant.tape, TapeEntry.event(LOST_TAIL_EVENT, data, context=False))

    async def _write(self, journal: Journal, logged: Sequence[Record]) -> None:
        try:
            await journal.write(logged)
        except LostEnd:
            # What this attempt knows is all in memory, but for what it wrote ahead. If the tape itself lost something,
            # the merge is refused, and the next attempt goes on from here.
            await self.ensure_sidecars()
            log.error("journal.written_anew")
            await journal.write_anew(logged)

    async def flush(self) -> None:
        """Make durable what was logged; may be called by several tasks at once. Raises Fenced, Outage.

        Does nothing once the run is `stopped`: what the agent records on its way out is not what the next attempt
        should go on from.
        """
        if self._journal is None or self.stopped():
            return
        async with self._flushing:
            logged, self._logged = self._logged, []
            if not logged:
                return
            try:
                await self._write(self._journal, logged)
            except BaseException:
                self._logged = logged + self._logged
                raise
