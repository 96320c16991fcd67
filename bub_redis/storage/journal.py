"""The journal of a turn: the log of its overlay, written while it runs, read by the attempt after one that died."""

import json
from collections.abc import Iterator, Sequence
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
        """All records of earlier attempts, in order; writing goes on behind them.

        What is not ours, and notes that cannot be read, are left out. Raises Outage.
        """
        records: list[Record] = []
        if not (self._grant.has_journal or self._written):
            return records
        start = "-"
        while True:
            with self._server.outages():
                page = await self._server.reply("XRANGE", self._key, start, "+", "COUNT", _PAGE_RECORDS)
            records += self._readable(page)
            if len(page) < _PAGE_RECORDS:
                return records
            start = f"({page[-1][0].decode()}"

    def _readable(self, page: Page) -> Iterator[Record]:
        for stream_id, flat in page:
            try:
                yield self._record(stream_id, flat)
            except (ValueError, RecursionError) as error:
                of = {"tape": self._grant.tape, "turn": self._grant.holder, "id": stream_id.decode()}
                log.warning("journal.left_out", **of, error=type(error).__name__)

    def _record(self, stream_id: bytes, flat: Sequence[bytes]) -> Record:
        """What stands at an id. Raises ValueError, RecursionError for what no `write` of this journal has written.

        What an entry holds is not looked at.
        """
        ms, _, number = stream_id.partition(b"-")
        stored = stored_in(flat[2:])
        if ms != b"0" or flat[0] != b"tape" or stored is None:
            raise ValueError("not written by bub-redis")
        self._written = int(number)
        record = Record(flat[1].decode() or None, stored)
        if record.tape is None:
            if not isinstance(record.data, dict):
                raise ValueError("not a note")
        elif owner_tape(record.tape) != self._grant.tape:
            raise ValueError("an entry of another session")
        return record

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
