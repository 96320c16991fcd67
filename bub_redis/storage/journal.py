"""The journal of a turn: the log of its overlay, written while it runs, read by the attempt after one that died."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from bub_redis.errors import Fenced
from bub_redis.storage.client import RedisServer
from bub_redis.storage.connection import Argument
from bub_redis.storage.heads import Page, stored_in
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.script import Script
from bub_redis.tape.entry import StoredEntry, encode_json
from bub_redis.tape.names import owner_tape
from bub_redis.tape.store import Grant

_JOURNAL = Script(__package__, "journal")
_PAGE_RECORDS = 200
_WRITTEN, _GONE = 1, -1

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Record:
    """One record: an entry of the overlay as it will be stored, or a note of what else a later attempt must know."""

    tape: str | None
    """The tape of an entry; None for a note."""
    stored: StoredEntry
    """The entry; of a note its kind, and its JSON as the payload."""

    @classmethod
    def note(cls, kind: str, data: dict[str, Any]) -> "Record":
        """A note. Raises InvalidInput if `data` is not JSON."""
        return cls(None, StoredEntry(kind.encode(), encode_json(data, f"a {kind} note"), b"", b""))

    @property
    def kind(self) -> str:
        """The kind of the entry or note."""
        return self.stored.kind.decode()

    @property
    def data(self) -> dict[str, Any]:
        """What a note says."""
        found: dict[str, Any] = json.loads(self.stored.payload)
        return found


class LostEnd(Exception):
    """The server went back to an older copy: what was written of the journal is gone."""


class Journal:
    """The journal of the granted turn on one server."""

    def __init__(self, server: RedisServer, namespace: str, grant: Grant) -> None:
        keys = TapeKeys(namespace, grant.tape)
        self._server = server
        self._grant = grant
        self._key = keys.journal(grant.holder)
        self._fence_key = keys.fence
        self._written: list[Record] = []
        """All that the journal holds, as far as this attempt knows."""

    async def read(self) -> list[Record]:
        """All records of earlier attempts, in order; writing goes on behind them.

        What is not ours, and what cannot be read, is left out, and all that stands behind a record that is missing.
        Raises Outage.
        """
        self._written = []
        if not self._grant.has_journal:
            return []
        start = "-"
        while True:
            with self._server.outages():
                page = await self._server.reply("XRANGE", self._key, start, "+", "COUNT", _PAGE_RECORDS)
            is_whole = self._take(page)
            if len(page) < _PAGE_RECORDS or not is_whole:
                return [record for record in self._written if self._is_readable(record)]
            start = f"({page[-1][0].decode()}"

    def _take(self, page: Page) -> bool:
        """Take what writes of this journal have written; False at a number that does not follow."""
        for stream_id, flat in page:
            ms, _, number = stream_id.partition(b"-")
            stored = stored_in(flat[2:])
            if ms != b"0" or flat[0] != b"tape" or stored is None:
                self._tell("journal.left_out", stream_id.decode())
            elif int(number) != len(self._written) + 1:
                self._tell("journal.cut_off", stream_id.decode())
                return False
            else:
                self._written.append(Record(flat[1].decode(errors="replace") or None, stored))
        return True

    def _is_readable(self, record: Record) -> bool:
        """Whether it is a note, or an entry of this session. What an entry holds is not looked at."""
        try:
            if isinstance(record.data, dict) if record.tape is None else owner_tape(record.tape) == self._grant.tape:
                return True
        except (ValueError, RecursionError):
            pass
        self._tell("journal.left_out", record.stored.kind.decode(errors="replace"))
        return False

    def _tell(self, event: str, what: str) -> None:
        log.warning(event, tape=self._grant.tape, turn=self._grant.holder, record=what)

    async def write(self, records: Sequence[Record]) -> None:
        """Append records, durable when this returns. May be repeated.

        Raises LostEnd with nothing written, Fenced if the session was lost, Outage.
        """
        await self._send(len(self._written) + 1, records)
        self._written += records

    async def write_anew(self, records: Sequence[Record]) -> None:
        """Write all that the journal is known to hold, and `records` behind it, where a server lost its end.

        Raises Fenced, Outage.
        """
        await self._send(1, [*self._written, *records])
        self._written += records

    async def _send(self, first: int, records: Sequence[Record]) -> None:
        args: list[Argument] = [self._grant.fence, first]
        for record in records:
            args += [record.tape or "", *record.stored]
        with self._server.outages():
            verdict = await _JOURNAL.run(self._server, [self._key, self._fence_key], args)
        if verdict == _GONE:
            raise LostEnd
        if verdict != _WRITTEN:
            raise Fenced(f"session {self._grant.tape!r} was granted to another attempt since; nothing was written")
