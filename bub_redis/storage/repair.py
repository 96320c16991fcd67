"""Repair: what stands beside a tape's stream is made from it again, and what is not the tape's is set aside.

A tape to which somebody wrote by hand, or of which a key was lost or overwritten, refuses every write. Its entries say
what its other keys must hold, so it can be written again. Nothing is thrown away: entries and keys of others are kept
under names that end in `damaged`. Entries that are gone stay gone, and `tape verify` goes on saying so.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from redis.exceptions import ResponseError

from bub_redis.errors import Conflict
from bub_redis.storage.client import RedisServer
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.lock import SessionLock
from bub_redis.storage.refusal import refused
from bub_redis.storage.script import Argument, Script
from bub_redis.storage.survey import Repair, Survey, Surveyor, Told, latest_of, members
from bub_redis.tape.store import Grant

REPAIR_EVENT = "tape.repair"

_REPAIR = Script(__package__, "repair")
_SENT_AT_ONCE = 500
_REBUILT_TTL_S = 3600
"""How long what is made anew is kept if its repair dies before it takes the old one's place."""
_TRIES = 5

_Command = tuple[Any, ...]


class Repairer:
    """Surveys and repairs the tapes of one server."""

    def __init__(self, server: RedisServer, namespace: str, lock: SessionLock) -> None:
        self._server = server
        self._lock = lock
        self._surveyor = Surveyor(server, namespace)

    async def survey(self, tape: str) -> list[Repair]:
        """What a repair of the tape and its sidecars would mend; nothing is changed. Raises Outage."""
        renamed = await self._surveyor.misplaced_keys(tape)
        names = await self._surveyor.tapes(tape, renamed)
        found = [(await self._surveyor.survey(name, skipped=renamed)).found for name in names]
        return [replace(found[0], renamed=renamed), *found[1:]]

    async def repair(self, tape: str, wait_s: float) -> list[Repair]:
        """Mend the tape and its sidecars, and return what was mended; may be repeated.

        Holds the session meanwhile. Raises SessionBusy with nothing changed but that keys of another type are out of
        the way; Fenced, Conflict if the stream changes faster than it can be read, TapeBlocked, Outage.
        """
        renamed = await self._surveyor.misplaced_keys(tape)
        await self._set_aside(renamed)
        async with self._lock.hold(tape, f"repair-{secrets.token_hex(8)}", wait_s) as grant:
            _, *sidecars = await self._surveyor.tapes(tape)
            found = [await self._mend(grant, name) for name in sidecars]
            mended = await self._mend(grant, tape)
        return [replace(mended, renamed=renamed), *found]

    async def _mend(self, grant: Grant, tape: str) -> Repair:
        for _ in range(_TRIES):
            survey = await self._surveyor.survey(tape)
            if not survey.found.needed or await self._applied(grant, survey):
                return survey.found
        raise Conflict(f"tape {tape!r} changes faster than it can be read; keep others from writing to its stream")

    async def _set_aside(self, keys: Sequence[str]) -> None:
        for key in keys:
            with self._server.outages():
                try:
                    await self._server.commands.rename(key, f"{key}:damaged:{time.time_ns() // 1_000_000}")
                except ResponseError as error:
                    # Somebody else took it away meanwhile.
                    if "no such key" not in str(error):
                        raise

    async def _applied(self, grant: Grant, survey: Survey) -> bool:
        """Mend one tape, unless its stream is not any more as it was read; whether it did."""
        keys, told = survey.keys, survey.told
        stream, anchors, latest = remade = keys.rebuilt(grant.secret)
        if "last id" in survey.found.rebuilt:
            await self._copy(keys, told, stream)
        await self._send([("HSETNX", keys.turns, *mark) for mark in survey.marks.items()])
        await self._build(anchors, "ZADD", [(score, member) for member, score in members(told.anchors).items()])
        await self._build(latest, "HSET", list(latest_of(told.anchors).items()))
        # A sidecar has no receipts, so the fence stays ours until the tape itself is mended, as the last one.
        token = max((receipt.token for receipt in told.receipts), default=0)
        fields = [part for name, value in survey.state.items() for part in (keys.prefix + name, value)]
        args: list[Argument] = [grant.fence, token, told.length, told.last_id]
        args += [len(survey.state), *fields, *told.foreign]
        with self._server.outages():
            verdict, *rest = await _REPAIR.run(
                self._server.commands,
                [keys.fence, keys.state, *keys.written, keys.damaged, *remade],
                args,
            )
        if verdict == b"REFUSED":
            raise refused(keys.name, rest[0].decode())
        return bool(verdict == b"OK")

    async def _copy(self, keys: TapeKeys, told: Told, stream: str) -> None:
        """Make the stream anew, without what is not ours: it remembers the largest id that it ever held."""
        foreign, begun = set(told.foreign), False
        commands: list[_Command] = []
        async for stream_id, flat in self._surveyor.entries(keys):
            if stream_id.decode() in foreign:
                continue
            commands.append(("XADD", stream, stream_id, *flat))
            if not begun or len(commands) == _SENT_AT_ONCE:
                await (self._send(commands) if begun else self._begin(stream, commands[0]))
                commands, begun = [], True
        await self._send(commands)

    async def _build(self, key: str, command: str, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Make an index beside the one that it will replace."""
        if pairs:
            await self._begin(key, (command, key, *pairs[0]))
            await self._send([(command, key, *pair) for pair in pairs[1:]])

    async def _begin(self, key: str, first: _Command) -> None:
        """Make a key anew, under a TTL from the beginning: whoever dies on the way leaves nothing for good."""
        with self._server.outages():
            async with self._server.commands.pipeline(transaction=True) as pipe:
                pipe.execute_command("DEL", key)
                pipe.execute_command(*first)
                pipe.execute_command("EXPIRE", key, _REBUILT_TTL_S)
                await pipe.execute()

    async def _send(self, commands: Sequence[_Command]) -> None:
        left = iter(commands)
        while part := list(islice(left, _SENT_AT_ONCE)):
            with self._server.outages():
                async with self._server.commands.pipeline(transaction=False) as pipe:
                    for command in part:
                        pipe.execute_command(*command)
                    await pipe.execute()
