"""Following one turn: its frame stream while there is one, then the turn itself, then the tape."""

import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from bub_redis.errors import Conflict, InvalidInput, NotFound
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.store import RedisTapeStore
from bub_redis.tape.stream_id import StreamId
from bub_redis.turns.attempt import Standing
from bub_redis.turns.frames import Frame, placed
from bub_redis.turns.hub import FrameHub
from bub_redis.turns.outcome import read_receipt
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.record import Turn

SILENCE_S = 1.0
"""How long a silent stream is believed before the turn itself is looked at."""
_START = "0-0"
_FRAME_ID = re.compile(r"\d{1,19}-\d{1,19}")


class Follower:
    """One reading of a turn's frames: drops what lower attempts wrote, and tells where numbers jump."""

    def __init__(self, hub: FrameHub, queue: TurnQueue, store: RedisTapeStore, turn: Turn) -> None:
        self._hub = hub
        self._queue = queue
        self._store = store
        self._turn = turn
        self._key = TapeKeys(store.namespace, turn.tape).frames(turn.id)
        self._seen = Frame(_START, "", {})
        self._place: int | None = None
        self._told = False

    async def frames(self, after: str | None) -> AsyncGenerator[Frame, None]:
        """Frames behind `after`, or all there are, up to `finished`.

        Raises NotFound, InvalidInput, Outage; Conflict if the tape lost the turn.
        """
        arrived = await (self._look() if not after or after == _START else self._resume(after))
        if self._seen.type == "finished":
            return
        async with self._hub.subscribe(self._key, self._seen.id) as subscription:
            while True:
                for frame in arrived:
                    yield frame
                    if frame.type == "finished":
                        return
                read = await subscription.read(SILENCE_S)
                arrived = [shown for raw in read for shown in self._shown(*raw)] or await self._look()

    async def _resume(self, after: str) -> list[Frame]:
        if not _FRAME_ID.fullmatch(after):
            raise InvalidInput(f"a frame's id is <ms>-<number>, not {after[:40]!r}")
        with self._store.server.outages():
            found = await self._store.server.reply("XRANGE", self._key, after, after)
        seen = Frame.decode(*found[0]) if found else None
        self._seen = seen or Frame(after, "gap", {})
        return [] if seen else [self._seen]

    def _shown(self, stream_id: bytes, flat: Sequence[bytes]) -> list[Frame]:
        """The frame that stands there, behind a gap if some were lost before it.

        Nothing if a later attempt was seen already, or if it is no frame of ours: then only the place moves on.
        """
        seen, frame = self._seen, Frame.decode(stream_id, flat)
        if frame is None or frame.attempt < seen.attempt:
            self._seen = replace(seen, id=stream_id.decode())
            return []
        self._seen = frame
        expected = seen.number + 1 if frame.attempt == seen.attempt else 1
        unbroken = frame.number == expected or seen.type == "gap"
        return [frame] if unbroken else [Frame(seen.id, "gap", {}, seen.attempt, seen.number), frame]

    async def _look(self) -> list[Frame]:
        """What the turn itself says while its stream is silent: its place in the queue, or its end."""
        standing = await self._queue.standing(self._turn)
        match standing.status if standing else None:
            case "queued" | "steering":
                place = standing.place if standing else None
                if self._told and place == self._place:
                    return []
                self._told, self._place = True, place
                return [self._made("queued", {"place": place})]
            case "running":
                return []
            case _:
                return await self._end(standing)

    async def _end(self, standing: Standing | None) -> list[Frame]:
        """The end of a turn that the queue side knows as ended, or does not know any more, from the tape."""
        with self._store.server.outages():
            newest = await self._store.server.reply("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        if newest and StreamId.of(newest[0][0]) > StreamId.of(self._seen.id):
            return []
        committed = await self._store.committed(self._turn.tape, self._turn.id)
        receipt = None if committed is None else await read_receipt(self._store, self._turn, committed)
        if receipt is not None:
            data = {"turn": self._turn.id, "status": receipt.status, "error": receipt.error, "entries": receipt.entries}
            gap = [self._made("gap", {})] if self._seen.type else []
            return [*gap, self._made("finished", data | placed(receipt.id, receipt.entries, receipt.answer))]
        if committed is None and standing is None:
            raise NotFound(f"session {self._turn.session!r} has no turn {self._turn.id!r}")
        if committed is None and standing and standing.receipt:
            raise Conflict(
                f"turn {self._turn.id!r} was committed with receipt {standing.receipt}, and its tape has lost it: "
                "the tape's server went back to an older copy"
            )
        # It never started (cancelled while it waited, or taken in by another turn), or its tape was reset since.
        ended = committed.status if committed else standing and standing.status
        return [self._made("finished", {"turn": self._turn.id, "status": ended, "error": None, "entries": 0})]

    def _made(self, kind: str, data: dict[str, object]) -> Frame:
        """A frame of the follower's own: resuming behind it is resuming behind the last one of the stream."""
        return Frame(self._seen.id, kind, data, self._seen.attempt, self._seen.number)
