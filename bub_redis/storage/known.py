"""The list of known tapes: a key of its own in a slot of its own, so it is kept beside commits and not within them.

A tape is on the list before its first commit; a name whose tape holds nothing is left out when the list is read.
"""

import asyncio
import contextlib
import time

from bub_redis.errors import BubError
from bub_redis.storage.client import RedisServer, raised
from bub_redis.storage.connection import Argument
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
        self._settling = asyncio.Event()

    async def note(self, tape: str) -> None:
        """Put the tape on the list: before its first commit, and beside later ones without waiting. Raises Outage."""
        self._server.ensure_open()  # a closed store says so here, and not in a task that nobody waits for
        if SIDECAR_MARKER in tape:
            return
        if tape in self._noted:
            self._moved[tape] = _now_ms()
            if self._noting is None or self._noting.done():
                self._noting = asyncio.create_task(self._note_later())
            return
        with self._server.outages():
            await self._server.reply("ZADD", self._key, "GT", _now_ms(), tape)
        if len(self._noted) >= MOST_NOTED:
            self._noted.clear()
        self._noted.add(tape)

    async def _note_later(self) -> None:
        while self._moved:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TOGETHER_S):
                    await self._settling.wait()
            moved, self._moved = self._moved, {}
            if not moved:
                return  # deleted meanwhile
            scores: list[Argument] = [part for tape, at_ms in moved.items() for part in (at_ms, tape)]
            try:
                with self._server.outages():
                    await self._server.reply("ZADD", self._key, "GT", *scores)
            except BubError:
                # With the next commit: somebody may have taken a tape off the list meanwhile, by a delete.
                self._moved = moved | self._moved
                return

    async def forget(self, tape: str) -> None:
        """Take a deleted tape off the list, unless somebody has begun it anew. Raises Outage."""
        self._noted.discard(tape)
        self._moved.pop(tape, None)
        with self._server.outages():
            await self._server.reply("ZREM", self._key, tape)
            if await self._server.reply("EXISTS", TapeKeys(self._namespace, tape).tape):
                await self._server.reply("ZADD", self._key, "GT", _now_ms(), tape)

    async def names(self) -> list[str]:
        """The names of the tapes that hold entries, sorted. Raises Outage."""
        with self._server.outages():
            names = [name.decode() for name in await self._server.reply("ZRANGE", self._key, 0, -1)]
            asked = [("EXISTS", TapeKeys(self._namespace, name).tape) for name in names]
            there = map(raised, await self._server.ask_each(*asked))
            return sorted(name for name, exists in zip(names, there, strict=True) if exists)

    async def settle(self) -> None:
        """Note what is still to be noted at once, for a store that closes; raises nothing."""
        if self._noting is not None:
            self._settling.set()
            await asyncio.wait({self._noting})
            self._settling.clear()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
