"""Frames: what followers of a turn see while it runs. Drafts only; the tape is the truth."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from bub_redis.errors import BubError
from bub_redis.storage.client import RedisServer
from bub_redis.storage.commit import LastFrame
from bub_redis.storage.connection import Argument
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.lock import FirstFrame
from bub_redis.storage.script import Script
from bub_redis.tape.entry import encode_json
from bub_redis.tape.receipt import Receipt
from bub_redis.tape.store import Grant
from bub_redis.tape.stream_id import StreamId

_FRAMES = Script(__package__, "frames")

JOIN_S = 0.04
"""How long text deltas are joined before they are sent as one frame."""
MOST_FRAMES = 10_000
"""How many frames a turn keeps, about; older ones are gone for late followers, who see a gap."""
_JOINED = frozenset({"text", "reasoning"})

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Frame:
    """One thing that a follower sees. `id` is where to resume after it."""

    id: str
    type: str
    data: Mapping[str, Any]
    attempt: int = 0
    number: int = 0

    @classmethod
    def decode(cls, stream_id: bytes, flat: Sequence[bytes]) -> "Frame | None":
        """A frame as a stream holds it, that of a merge with its receipt; None for what was written by hand."""
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        try:
            data = json.loads(fields[b"data"])
            if not isinstance(data, dict):
                return None
            if b"receipt" in fields:
                data |= placed(fields[b"receipt"].decode(), data["entries"], data["answer"])
            return cls(stream_id.decode(), fields[b"type"].decode(), data, int(fields[b"attempt"]), int(fields[b"n"]))
        except (KeyError, TypeError, ValueError, RecursionError):
            return None


def placed(receipt_id: str, entries: int, answer: int | None) -> dict[str, Any]:
    """Which entries a finished turn put on the tape: the receipt's stream id, and numbers of first, last and answer."""
    last = StreamId.of(receipt_id).number
    first = last - entries
    return {
        "receipt": receipt_id,
        "first": first,
        "last": last,
        "answer": None if answer is None else first + answer,
    }


def first_frame(attempt: int, ttl_s: float) -> FirstFrame:
    """The first frame of an attempt: `started`, or `restarted`, which voids all drafts before it."""
    return FirstFrame("started" if attempt == 1 else "restarted", attempt, b"{}", int(ttl_s * 1000))


class FrameWriter:
    """Writes the frames of one attempt, numbered, in order, text joined, in the background.

    A frame is never worth a turn: what cannot be written is dropped and leaves a gap in the numbers.
    """

    def __init__(self, server: RedisServer, namespace: str, grant: Grant, attempt: int, ttl_s: float) -> None:
        self._server = server
        keys = TapeKeys(namespace, grant.tape)
        self._keys = [keys.frames(grant.holder), keys.fence]
        self._grant = grant
        self._attempt = attempt
        self._ttl_ms = int(ttl_s * 1000)
        # Number 1 is the frame of the grant.
        self._last_number = 1
        self._pending: list[tuple[str, dict[str, Any]]] = []
        self._wanted = asyncio.Event()
        self._closing = asyncio.Event()
        self._sender = asyncio.create_task(self._send_on())

    async def close(self) -> None:
        """Send what is pending and stop; may be repeated."""
        self._closing.set()
        self._wanted.set()
        await self._sender

    def put(self, kind: str, data: Mapping[str, Any]) -> None:
        """Take a frame to be sent within JOIN_S. Deltas of one kind in a row become one frame."""
        if kind in _JOINED and self._pending and self._pending[-1][0] == kind:
            self._pending[-1][1]["delta"] += data["delta"]
        else:
            self._pending.append((kind, dict(data)))
        self._wanted.set()

    async def _send(self) -> None:
        pending, self._pending = self._pending, []
        self._wanted.clear()
        if not pending:
            return
        args: list[Argument] = [self._grant.fence, self._attempt, self._ttl_ms, MOST_FRAMES]
        first = self._last_number + 1
        self._last_number += len(pending)
        try:
            for number, (kind, data) in enumerate(pending, start=first):
                args += [number, kind, encode_json(data, f"a {kind} frame")]
            with self._server.outages():
                await _FRAMES.run(self._server, self._keys, args)
        except BubError as error:
            log.warning("frames.dropped", frames=len(pending), turn=self._grant.holder, error=type(error).__name__)

    def last_frame(self, receipt: Receipt) -> LastFrame:
        """The last frame, `finished`, which the merge itself writes and completes with the receipt's stream id."""
        data = {key: getattr(receipt, key) for key in ("turn", "status", "error", "entries", "answer")}
        return LastFrame(
            "finished",
            self._attempt,
            self._last_number + 1,
            encode_json(data, "a finished frame"),
            self._ttl_ms,
        )

    async def _send_on(self) -> None:
        while not self._closing.is_set():
            await self._wanted.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(JOIN_S):
                    await self._closing.wait()
            await self._send()
        # What was put while the last frames were on their way.
        while self._pending:
            await self._send()
