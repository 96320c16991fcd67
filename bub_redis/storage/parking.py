"""Parked overlays: what the fence refused to merge is kept for a while, for a person to look at. Nothing merges it."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from bub_redis.errors import BubError
from bub_redis.storage.client import RedisServer
from bub_redis.storage.connection import Command
from bub_redis.storage.heads import names_and_values, stored_in
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape.entry import StoredEntry, TapeEntry
from bub_redis.tape.store import Commit

PARKED_TTL_S = 7 * 86_400
"""How long an overlay stays parked."""
PARKED_BYTES = 4 * 1024 * 1024
"""How much of an overlay is parked; what comes behind is only counted."""
_SUMMARY = "parked"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Parked:
    """The overlay of a merge that the fence refused."""

    turn: str
    """The turn, or the run of a library fork."""
    parked_ms: int
    """When it was parked, by this process's clock."""
    entries: Sequence[TapeEntry]
    """What it would have put on the tape, numbered from 1."""
    dropped: int
    """How many entries behind them were too large to be parked."""


class Parking:
    """Parks overlays on one server."""

    def __init__(self, server: RedisServer, namespace: str) -> None:
        self._server = server
        self._namespace = namespace

    async def park(self, commit: Commit) -> None:
        """Keep the block of a refused commit, in place of an earlier one of the same turn.

        What cannot be parked is lost, as it would be without: raises nothing.
        """
        grant, block = commit.grant, commit.main.block.entries
        kept = _fitting(block)
        summary = {"token": grant.token, "attempt": commit.receipt.attempt, "dropped": len(block) - len(kept)}
        keys = TapeKeys(self._namespace, grant.tape)
        parked, now_ms, ttl_ms = keys.parked(grant.holder), time.time_ns() // 1_000_000, PARKED_TTL_S * 1000
        entries = [*kept, TapeEntry.event(_SUMMARY, summary, context=False).encode()]
        adding: list[Command] = [("XADD", parked, "*", *names_and_values(entry)) for entry in entries]
        with suppress(BubError), self._server.outages():
            await self._server.transact(
                ("DEL", parked),
                *adding,
                ("PEXPIRE", parked, ttl_ms),
                ("ZREMRANGEBYSCORE", keys.parked_turns, "-inf", now_ms - ttl_ms),
                ("ZADD", keys.parked_turns, now_ms, grant.holder),
                ("PEXPIRE", keys.parked_turns, ttl_ms),
            )
            log.warning("turn.parked", tape=grant.tape, turn=grant.holder, **summary)

    async def parked(self, tape: str) -> list[Parked]:
        """The parked overlays of a tape, oldest first. Raises Outage."""
        keys = TapeKeys(self._namespace, tape)
        found: list[Parked] = []
        with self._server.outages():
            flat = await self._server.reply("ZRANGE", keys.parked_turns, 0, -1, "WITHSCORES")
            for turn, parked_ms in zip(flat[::2], flat[1::2], strict=True):
                page = await self._server.reply("XRANGE", keys.parked(turn.decode()), "-", "+")
                stored = [entry for _, fields in page if (entry := stored_in(fields))]
                if stored:
                    *entries, summary = (TapeEntry.decode(n, entry) for n, entry in enumerate(stored, start=1))
                    dropped = summary.payload["data"]["dropped"]
                    found.append(Parked(turn.decode(), int(parked_ms), entries, dropped))
        return found


def _fitting(block: Sequence[StoredEntry]) -> list[StoredEntry]:
    kept: list[StoredEntry] = []
    size_bytes = 0
    for entry in block:
        size_bytes += entry.size_bytes
        if size_bytes > PARKED_BYTES:
            break
        kept.append(entry)
    return kept
