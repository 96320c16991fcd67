"""The list of known tapes: a key of its own in a slot of its own, so it is kept beside commits and not within them.

A tape is on the list before its first commit; a name whose tape holds nothing is left out when the list is read.
"""

import asyncio
import contextlib
import time

from bub_redis.errors import Outage, StoreClosed
from bub_redis.storage.client import RedisServer
from bub_redis.storage.keys import TapeKeys, known_tapes
from bub_redis.tape.names import SIDECAR_MARKER

_TOGETHER_S = 0.05
"""How long later commits are gathered before the list is brought up to date: one command for all of them."""
MOST_NOTED = 10_000
"""How many names a process remembers having noted; a forgotten one costs a round trip once more."""


class KnownTapes:
    """The list on one server, and what this process has put on it."""

    def __init__(self, server: RedisServer, namespace: str) -> None:
        self._server = server
        self._namespace = namespace
        self._key = known_tapes(namespace)
        self._noted: set[str] = set()
        self._moved: dict[str, int] = {}
        self._noting: asyncio.Task[None] | None = None

    async def note(self, tape: str) -> None:
        """Put the tape on the list: before its first commit, and beside later ones without waiting. Raises Outage."""
        commands = self._server.commands  # a closed store says so here, and not in a task that nobody waits for
        if SIDECAR_MARKER in tape:
            return
        if tape in self._noted:
            self._moved[tape] = _now_ms()
            if self._noting is None or self._noting.done():
                self._noting = asyncio.create_task(self._note_later())
            return
        with self._server.outages():
            await commands.zadd(self._key, {tape: _now_ms()}, gt=True)
        if len(self._noted) >= MOST_NOTED:
            self._noted.clear()
        self._noted.add(tape)

    async def _note_later(self) -> None:
        while self._moved:
            await asyncio.sleep(_TOGETHER_S)
            await self._note_moved()

    async def _note_moved(self) -> None:
        moved, self._moved = self._moved, {}
        # Only the order of the list suffers, also where the server was closed without the store.
        with contextlib.suppress(Outage, StoreClosed), self._server.outages():
            if moved:
                await self._server.commands.zadd(self._key, moved, gt=True)

    async def forget(self, tape: str) -> None:
        """Take a deleted tape off the list, unless somebody has begun it anew. Raises Outage."""
        self._noted.discard(tape)
        self._moved.pop(tape, None)
        with self._server.outages():
            await self._server.commands.zrem(self._key, tape)
            if await self._server.commands.exists(TapeKeys(self._namespace, tape).tape):
                await self._server.commands.zadd(self._key, {tape: _now_ms()}, gt=True)

    async def names(self) -> list[str]:
        """The names of the tapes that hold entries, sorted. Raises Outage."""
        commands = self._server.commands
        with self._server.outages():
            names = [name.decode() for name in await commands.zrange(self._key, 0, -1)]
            async with commands.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.exists(TapeKeys(self._namespace, name).tape)
                there = await pipe.execute()
        return sorted(name for name, exists in zip(names, there, strict=True) if exists)

    async def settle(self) -> None:
        """Note what is still to be noted, for a store that closes."""
        if self._noting is not None:
            self._noting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._noting
            await self._note_moved()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
