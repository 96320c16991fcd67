"""Following one turn: its frame stream while there is one, then the turn itself, then the tape."""

from collections.abc import AsyncIterator

from bub_redis.errors import NotFound
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.store import RedisTapeStore
from bub_redis.turns.frames import Frame, placed
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.record import Turn

SILENCE_S = 1.0
"""How long a silent stream is believed before the turn itself is looked at."""
_PAGE_FRAMES = 500
_START = "0-0"


class Follower:
    """One reading of a turn's frames: drops what lower attempts wrote, and tells where numbers jump."""

    def __init__(self, queue: TurnQueue, store: RedisTapeStore, turn: Turn) -> None:
        self._queue = queue
        self._store = store
        self._turn = turn
        self._key = TapeKeys(store.namespace, turn.tape).frames(turn.id)
        self._seen = Frame(_START, "", {})
        self._place: int | None = None

    async def frames(self, after: str | None) -> AsyncIterator[Frame]:
        """Frames behind `after`, or all there are, up to `finished`. Raises NotFound for an unknown turn, Outage."""
        arrived = await self._look() if after in {None, _START} else await self._resume(str(after))
        while True:
            for frame in arrived:
                yield frame
                if frame.type == "finished":
                    return
            arrived = [shown for frame in await self._read() for shown in self._shown(frame)] or await self._look()

    async def _resume(self, after: str) -> list[Frame]:
        with self._store.server.outages():
            found = await self._store.server.commands.xrange(self._key, min=after, max=after)
        self._seen = Frame.decode(*found[0]) if found else Frame(after, "gap", {})
        return [] if found else [self._seen]

    async def _read(self) -> list[Frame]:
        server = self._store.server
        with server.outages():
            reply = await server.blocking.xread(
                {self._key: self._seen.id}, count=_PAGE_FRAMES, block=int(SILENCE_S * 1000)
            )
        return [Frame.decode(stream_id, fields) for _, page in reply for stream_id, fields in page]

    def _shown(self, frame: Frame) -> list[Frame]:
        """`frame`, behind a gap if some were lost before it; nothing if a later attempt was seen already."""
        seen, self._seen = self._seen, frame
        if frame.attempt < seen.attempt:
            self._seen = Frame(frame.id, seen.type, seen.data, seen.attempt, seen.number)
            return []
        expected = seen.number + 1 if frame.attempt == seen.attempt else 1
        unbroken = frame.number == expected or seen.type == "gap"
        return [frame] if unbroken else [Frame(seen.id, "gap", {}, seen.attempt, seen.number), frame]

    async def _look(self) -> list[Frame]:
        """What the turn itself says while its stream is silent: its place in the queue, or its end."""
        standing = await self._queue.standing(self._turn)
        if standing is not None and standing.status == "queued":
            if standing.place == self._place:
                return []
            self._place = standing.place
            return [self._made("queued", {"place": standing.place})]
        if standing is not None and standing.status == "running":
            return []
        return await self._end()

    async def _end(self) -> list[Frame]:
        """The end of a turn that the queue side knows as ended or does not know any more, from the tape."""
        with self._store.server.outages():
            waiting = await self._store.server.commands.xrange(self._key, min=f"({self._seen.id}", count=1)
        if waiting:
            return []
        committed = await self._store.committed(self._turn.tape, self._turn.id)
        if committed is None:
            raise NotFound(f"session {self._turn.session!r} has no turn {self._turn.id!r}")
        receipt = await self._store.receipt(self._turn.tape, committed)
        data = {
            "turn": self._turn.id,
            "status": receipt.status,
            "error": receipt.error,
            "entries": receipt.entries,
        }
        gap = [] if self._seen.id == _START else [self._made("gap", {})]
        return [*gap, self._made("finished", data | placed(receipt.id, receipt.entries, receipt.answer))]

    def _made(self, kind: str, data: dict[str, object]) -> Frame:
        """A frame of the follower's own: resuming behind it is resuming behind the last one of the stream."""
        return Frame(self._seen.id, kind, data, self._seen.attempt, self._seen.number)
