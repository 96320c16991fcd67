"""Repair: what stands beside a tape's stream is made from it again, and what is not the tape's is set aside.

A tape to which somebody wrote by hand, or of which a key was lost or overwritten, refuses every write. Its entries say
what its other keys must hold, so it can be written again. Nothing is thrown away: entries and keys of others are kept
under names that end in `damaged`. Entries that are gone stay gone, and `tape verify` goes on saying so.

All of a tape is mended in one script, so nothing is opened to writers half-way: a tape without its marks would commit a
turn again.
"""

import secrets
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from bub_redis.errors import Conflict, Fenced, Outage, SessionBusy
from bub_redis.storage.client import RedisServer, raised
from bub_redis.storage.connection import Argument, Command
from bub_redis.storage.evidence import latest_of, members
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.lock import SessionLock, kept, until_free
from bub_redis.storage.refusal import busy, refused
from bub_redis.storage.script import Script
from bub_redis.storage.survey import Repair, Survey, Surveyor
from bub_redis.tape.store import Grant

REPAIR_EVENT = "tape.repair"

_SEIZE = Script(__package__, "seize")
_REPAIR = Script(__package__, "repair")
_SENT_AT_ONCE = 500
_SENT_BYTES = 1024 * 1024
_REBUILT_TTL_S = 3600
"""How long what is made anew is kept if its repair dies before it takes the old one's place."""
_TRIES = 5


class Repairer:
    """Surveys and repairs the tapes of one server."""

    def __init__(self, server: RedisServer, namespace: str, lock: SessionLock) -> None:
        self._server = server
        self._namespace = namespace
        self._lock = lock
        self._surveyor = Surveyor(server, namespace)

    async def survey(self, tape: str, turns: Collection[str]) -> list[Repair]:
        """What a repair of the tape and its sidecars would mend; nothing is changed. Raises Outage."""
        return [(await self._surveyor.survey(name, turns)).found for name in await self._surveyor.tapes(tape)]

    async def repair(self, tape: str, turns: Collection[str], wait_s: float) -> list[Repair]:
        """Mend the tape and its sidecars, and return what was mended; may be repeated.

        Holds the session meanwhile. Raises SessionBusy with nothing changed; Fenced, Conflict if the stream changes
        faster than it can be read, TapeBlocked, Outage.
        """
        owned = await self._surveyor.odd_session_keys(tape)
        async with self._held(tape, wait_s) as grant:
            owner, *sidecars = [await self._surveyor.survey(name, turns) for name in await self._surveyor.tapes(tape)]
            # The tape itself comes last: what it shares with its sidecars is fit then, and it was closed till then.
            for survey in sidecars:
                await self._mend(grant, survey, turns)
            # The session's own keys were set aside when it was taken; that there was a repair is noted all the same.
            await self._mend(grant, owner, turns, noted=bool(owned))
        found = replace(owner.found, renamed=(*owned, *owner.found.renamed))
        return [found, *(survey.found for survey in sidecars)]

    @asynccontextmanager
    async def _held(self, tape: str, wait_s: float) -> AsyncIterator[Grant]:
        """Hold the session, whatever its other keys are."""
        grant = Grant(tape, f"repair-{secrets.token_hex(8)}", 0, secrets.token_hex(8))
        fence = await until_free(partial(self._seize, grant), wait_s)
        try:
            async with kept(partial(self._is_ours, grant), self._lock.lease_ms / 1000):
                yield replace(grant, token=int(fence.partition(":")[0]))
        finally:
            # What cannot be given back now expires.
            with suppress(Outage):
                await self._lock.release(grant)

    async def _seize(self, grant: Grant) -> str:
        """Take the session, or go on holding it; its fence. Raises SessionBusy, Fenced, Outage."""
        keys, at_ms = TapeKeys(self._namespace, grant.tape), time.time_ns() // 1_000_000
        with self._server.outages():
            verdict, *rest = await _SEIZE.run(
                self._server,
                [keys.lock, keys.fence, keys.set_aside(keys.lock, at_ms), keys.set_aside(keys.fence, at_ms)],
                [grant.lock, grant.secret, self._lock.lease_ms],
            )
        match verdict:
            case b"SEIZED":
                return str(rest[0].decode())
            case b"BUSY":
                raise busy(grant.tape, rest[0])
            case _:
                raise refused(grant.tape, "FENCED")

    async def _is_ours(self, grant: Grant) -> bool:
        """Go on holding the session; False if it is somebody else's: the scripts of the repair are refused then."""
        try:
            await self._seize(grant)
        except (SessionBusy, Fenced):
            return False
        return True

    async def _mend(self, grant: Grant, survey: Survey, turns: Collection[str], *, noted: bool = False) -> None:
        for _ in range(_TRIES):
            if not (survey.found.needed or survey.odd or noted):
                return
            if await self._applied(grant, survey):
                return
            survey = await self._surveyor.survey(survey.keys.name, turns)
        raise Conflict(
            f"tape {survey.keys.name!r} changes faster than it can be read; keep others from writing to its stream"
        )

    async def _applied(self, grant: Grant, survey: Survey) -> bool:
        """Mend one tape, unless its stream is not any more as it was read; whether it did."""
        keys, told, repair = survey.keys, survey.told, secrets.token_hex(8)
        turns, stream, anchors, latest = remade = keys.rebuilt(repair)
        if keys.turns in survey.odd:
            await self._build(turns, "HSET", list(survey.marks.items()))
        else:
            await self._send([("HSET", keys.turns, *mark) for mark in survey.marks.items()])
        if "last id" in survey.found.rebuilt:
            await self._copy(survey, stream)
        indexed = not {"anchors", "latest"}.isdisjoint(survey.found.rebuilt)
        if indexed:
            await self._build(
                anchors, "ZADD", [(int(score), member) for member, score in members(told.anchors).items()]
            )
            await self._build(latest, "HSET", list(latest_of(told.anchors).items()))
        # A sidecar has no receipts, so the fence stays ours until the tape itself is mended, as the last one.
        token = max((receipt.token for receipt in told.receipts), default=0)
        fields = [part for name, value in survey.state.items() for part in (keys.prefix + name, value)]
        at_ms = time.time_ns() // 1_000_000
        aside = [name for key in survey.odd for name in (key, keys.set_aside(key, at_ms))]
        args: list[Argument] = [grant.fence, repair, f"{keys.prefix}repair", token, told.length, told.last_id]
        args += ["1" if indexed else "", len(survey.odd), *survey.odd.values()]
        args += [len(survey.state), *fields, *told.foreign]
        with self._server.outages():
            verdict, *rest = await _REPAIR.run(
                self._server,
                [keys.fence, keys.state, keys.turns, *keys.written, keys.damaged, *remade, *aside],
                args,
            )
        if verdict == b"REFUSED":
            raise refused(keys.name, rest[0].decode())
        return bool(verdict == b"OK")

    async def _copy(self, survey: Survey, stream: str) -> None:
        """Make the stream anew, without what is not ours: it remembers the largest id that it ever held."""
        foreign, begun, size_bytes = set(survey.told.foreign), False, 0
        commands: list[Command] = []
        async for stream_id, flat in self._surveyor.entries(survey.keys):
            if stream_id.decode() in foreign:
                continue
            commands.append(("XADD", stream, stream_id, *flat))
            size_bytes += sum(map(len, flat))
            if not begun or len(commands) == _SENT_AT_ONCE or size_bytes > _SENT_BYTES:
                await (self._send(commands) if begun else self._begin(stream, commands[0]))
                commands, begun, size_bytes = [], True, 0
        await self._send(commands)

    async def _build(self, key: str, command: str, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Make a key beside the one that it will replace."""
        if pairs:
            await self._begin(key, (command, key, *pairs[0]))
            await self._send([(command, key, *pair) for pair in pairs[1:]])

    async def _begin(self, key: str, first: Command) -> None:
        """Make a key anew, under a TTL from the beginning: whoever dies on the way leaves nothing for good."""
        with self._server.outages():
            await self._server.transact(("DEL", key), first, ("EXPIRE", key, _REBUILT_TTL_S))

    async def _send(self, commands: Sequence[Command]) -> None:
        left = iter(commands)
        while part := list(islice(left, _SENT_AT_ONCE)):
            with self._server.outages():
                for reply in await self._server.ask(*part):
                    raised(reply)
