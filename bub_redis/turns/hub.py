"""One blocked read for all followers of this process, whose frames are handed to each of them.

On a cluster one for each slot that is followed: a command there may name keys of one slot only.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from bub_redis.errors import BubError
from bub_redis.storage.client import RedisServer, raised
from bub_redis.storage.cluster import NO_ANSWER, leads_nowhere
from bub_redis.storage.connection import PatientConnection
from bub_redis.tape.stream_id import StreamId
from bub_redis.tasks import ended

_BLOCK_MS = 1000
_PAGE_FRAMES = 500
_PAUSE_S = 0.2
_ASK_AGAIN_S = 0.01
MOST_WAITING = 2000
"""How many frames may wait for a slow follower; over that it reads them from the server by itself."""

RawFrame = tuple[bytes, Sequence[bytes]]
"""A stream id, and names and values as the server sends them."""
Reply = Sequence[tuple[bytes, Sequence[RawFrame]]]
"""Frames by stream."""


class Subscription:
    """One follower's place in one frame stream."""

    def __init__(self, server: RedisServer, key: str, last: str) -> None:
        self._server = server
        self.key = key
        self.last = last
        """The id of the last frame that was read, or where to begin behind."""
        self._behind = True
        """Whether frames between `last` and what is handed over must be read from the server.

        So at first: a read that is under way may be ahead of a newcomer.
        """
        self._waiting: deque[RawFrame] = deque()
        self._news = asyncio.Event()
        self._failure: BubError | None = None

    async def read(self, silence_s: float) -> list[RawFrame]:
        """The next frames, in order, each once; none after `silence_s` without. Raises Outage."""
        if not self._behind and not self._waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(silence_s):
                    await self._news.wait()
        self._news.clear()
        failure, self._failure = self._failure, None
        if failure:
            raise failure
        found = await self._catch_up() if self._behind else self._take()
        if found:
            self.last = found[-1][0].decode()
        return found

    def hand(self, frame: RawFrame) -> None:
        """Put a frame behind those that wait."""
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.clear()
            self._behind = True
        if not self._behind:
            self._waiting.append(frame)
        self._news.set()

    def fail(self, failure: BubError) -> None:
        """Let the next read raise."""
        self._failure = failure
        self._news.set()

    def _take(self) -> list[RawFrame]:
        last = StreamId.of(self.last)
        found = [frame for frame in self._waiting if StreamId.of(frame[0]) > last]
        self._waiting.clear()
        return found

    async def _catch_up(self) -> list[RawFrame]:
        # Handed over from here on; what is read below and handed over too is dropped by its id.
        self._behind = False
        with self._server.outages():
            page: list[RawFrame] = await self._server.reply(
                *("XRANGE", self.key, f"({self.last}", "+", "COUNT", _PAGE_FRAMES)
            )
        # What was handed over meanwhile may have been too much, too.
        self._behind = self._behind or len(page) == _PAGE_FRAMES
        return page


class FrameHub:
    """Hands the frames of all streams that are followed here to their followers."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._readers: dict[int | None, _Reader] = {}
        """By the slot that each one reads from; by None the one reader of a server that is no cluster."""

    @asynccontextmanager
    async def subscribe(self, key: str, last: str) -> AsyncIterator[Subscription]:
        """Take part in the stream `key` behind the id `last`, until the block ends. Raises Outage."""
        slot = await self._server.slot_of(key)
        reader = self._readers.setdefault(slot, _Reader(self._server))
        subscription = Subscription(self._server, key, last)
        reader.add(subscription)
        try:
            yield subscription
        finally:
            if not reader.remove(subscription) and slot is not None:
                del self._readers[slot]
                await reader.aclose()

    async def aclose(self) -> None:
        """Stop reading; may be repeated."""
        # A copy: followers that end meanwhile take theirs out.
        for reader in tuple(self._readers.values()):
            await reader.aclose()


class _Reader:
    """Reads on in some streams, with one connection, while anybody follows them.

    A new follower interrupts the blocked read by CLIENT UNBLOCK, so that it waits for nothing.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._subscriptions: set[Subscription] = set()
        self._lasts: dict[str, str] = {}
        self._watched: frozenset[Subscription] = frozenset()
        self._connection_id: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self._interrupting: dict[Subscription, asyncio.Task[None]] = {}

    def add(self, subscription: Subscription) -> None:
        """Hand the subscription the frames of its stream from now on."""
        # The earliest place of all that follow: one that somebody made up must not hide frames from the others.
        known = self._lasts.get(subscription.key, subscription.last)
        self._lasts[subscription.key] = min(known, subscription.last, key=StreamId.of)
        self._subscriptions.add(subscription)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_on())
        self._interrupting[subscription] = asyncio.create_task(self._have_watched(subscription))

    def remove(self, subscription: Subscription) -> bool:
        """Hand it nothing any more; whether anybody else follows."""
        self._interrupting.pop(subscription).cancel()
        self._subscriptions.discard(subscription)
        if all(other.key != subscription.key for other in self._subscriptions):
            self._lasts.pop(subscription.key, None)
        return bool(self._subscriptions)

    async def aclose(self) -> None:
        """Stop reading; may be repeated."""
        if self._reading:
            await ended(self._reading)

    async def _have_watched(self, subscription: Subscription) -> None:
        """Interrupt the blocked read until it takes the newcomer in: an interruption between two reads is lost."""
        while subscription not in self._watched:
            if self._connection_id is not None:
                with suppress(BubError), self._server.outages():
                    # Behind a key, so that it goes to the node that has the blocked connection.
                    await self._server.ask(("EXISTS", subscription.key), ("CLIENT", "UNBLOCK", self._connection_id))
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _read_on(self) -> None:
        """Read until nobody follows any more; an outage is told to all followers, and outlived."""
        while self._lasts:
            try:
                await self._read_connected()
            except BubError as failure:
                for subscription in self._subscriptions:
                    subscription.fail(failure)
                await asyncio.sleep(_PAUSE_S)

    async def _read_connected(self) -> None:
        """Read with one connection until nobody follows any more, or it is of no use."""
        with self._server.outages():
            async with self._server.connection(next(iter(self._lasts))) as connection:
                (self._connection_id,) = await connection.ask([("CLIENT", "ID")])
                try:
                    while self._lasts:
                        self._watched = frozenset(self._subscriptions)
                        reply = await self._read(connection)
                        if reply is None:
                            await asyncio.sleep(_PAUSE_S)
                            return
                        self._hand_over(reply)
                finally:
                    self._connection_id, self._watched = None, frozenset()

    async def _read(self, connection: PatientConnection) -> Reply | None:
        """What the streams have beyond what was read; None if the connection broke or leads to the wrong node now."""
        streams = (*self._lasts, *self._lasts.values())
        try:
            (reply,) = await connection.ask([("XREAD", "COUNT", _PAGE_FRAMES, "BLOCK", _BLOCK_MS, "STREAMS", *streams)])
        except NO_ANSWER:
            return None
        return None if leads_nowhere(reply) else raised(reply) or ()

    def _hand_over(self, reply: Reply) -> None:
        for raw_key, frames in reply:
            key = raw_key.decode()
            followers = [subscription for subscription in self._subscriptions if subscription.key == key]
            if followers:
                self._lasts[key] = frames[-1][0].decode()
            for subscription in followers:
                for frame in frames:
                    subscription.hand(frame)
