"""The journal of a turn: the log of its overlay, written while it runs, read by the attempt after one that died."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bub_redis.errors import Fenced
from bub_redis.storage.client import RedisServer
from bub_redis.storage.connection import Argument
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.reader import entry_number
from bub_redis.storage.script import Script
from bub_redis.tape.entry import StoredEntry, encode_json
from bub_redis.tape.store import Grant

_JOURNAL = Script(__package__, "journal")
_PAGE_RECORDS = 200


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


class Journal:
    """The journal of the granted turn on one server."""

    def __init__(self, server: RedisServer, namespace: str, grant: Grant) -> None:
        keys = TapeKeys(namespace, grant.tape)
        self._server = server
        self._grant = grant
        self._key = keys.journal(grant.holder)
        self._fence_key = keys.fence
        self._written = 0

    async def read(self) -> list[Record]:
        """All records of earlier attempts, in order; writing goes on behind them. Raises Outage."""
        records: list[Record] = []
        if not (self._grant.has_journal or self._written):
            return records
        start = "-"
        while True:
            with self._server.outages():
                page = await self._server.commands.xrange(self._key, min=start, count=_PAGE_RECORDS)
            for stream_id, fields in page:
                stored = StoredEntry(fields[b"kind"], fields[b"payload"], fields[b"meta"], fields[b"date"])
                records.append(Record(fields[b"tape"].decode() or None, stored))
                self._written = entry_number(stream_id)
            if len(page) < _PAGE_RECORDS:
                return records
            start = f"({page[-1][0].decode()}"

    async def write(self, records: Sequence[Record]) -> None:
        """Append records, durable when this returns. May be repeated. Raises Fenced if the session was lost, Outage."""
        args: list[Argument] = [self._grant.fence, self._written + 1]
        for record in records:
            args += [record.tape or "", *record.stored]
        with self._server.outages():
            ours = await _JOURNAL.run(self._server, [self._key, self._fence_key], args)
        if not ours:
            raise Fenced(f"session {self._grant.tape!r} was granted to another attempt since; nothing was written")
        self._written += len(records)
