"""The keeper: a thread that renews the leases of this worker's turns, so that a busy event loop does not lose them.

It renews only while the loop still answers. A loop that is blocked for good, or a turn that cannot be stopped at its
limit, ends the process: all its turns go on elsewhere.
"""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from bub_redis.errors import BubError
from bub_redis.settings import Settings
from bub_redis.storage.client import RedisServer
from bub_redis.storage.lock import SessionLock
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.runner import RunningTurn, Stop

EXIT_STALLED: Final = 70
"""The exit code of a worker that could not go on: EX_SOFTWARE of sysexits.h."""
_STOP_GRACE_S = 30.0
"""How long a turn, or the loop, may take to come to its senses before the process is ended."""

log = structlog.get_logger(__name__)


class LeaseKeeper:
    """Keeps the leases and locks of running turns from a thread of its own, with connections of its own."""

    def __init__(self, settings: Settings, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self._running: dict[RunningTurn, float] = {}
        self._guard = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._answered_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; what still runs is not renewed any more."""
        self._ended.set()

    @contextmanager
    def keep(self, running: RunningTurn) -> Iterator[None]:
        """Renew the attempt's lease, and its lock once granted, until the block ends."""
        with self._guard:
            self._running[running] = time.monotonic()
        try:
            yield
        finally:
            with self._guard:
                del self._running[running]

    def stop_all(self, reason: Stop) -> None:
        """Tell every running turn to stop. Called on the event loop."""
        for running in self._kept():
            running.stop(reason)

    def _kept(self) -> dict[RunningTurn, float]:
        with self._guard:
            return dict(self._running)

    def _run(self) -> None:
        asyncio.run(self._beat_on())

    async def _beat_on(self) -> None:
        settings = self._settings
        async with (
            RedisServer(settings.queue_address) as server,
            RedisServer(settings.tape_address) as tape_server,
        ):
            queue = TurnQueue(server, settings)
            lock = SessionLock(tape_server, settings.namespace, settings.lease_s)
            while not self._ended.is_set():
                self._call(self._answered)
                self._watch()
                if time.monotonic() - self._answered_at < settings.loop_stall_s:
                    await self._renew(queue, lock)
                await asyncio.sleep(settings.beat_s)

    def _answered(self) -> None:
        self._answered_at = time.monotonic()

    def _watch(self) -> None:
        """End the process if the loop is blocked for good, or a turn ignores its limit."""
        now = time.monotonic()
        stalled_s = now - self._answered_at
        if stalled_s > self._settings.loop_stall_s + _STOP_GRACE_S:
            self._give_up(f"the event loop has been blocked for {stalled_s:.0f} s")
        for running, since in self._kept().items():
            over_s = now - since - self._settings.turn_limit_s
            if over_s > _STOP_GRACE_S:
                self._give_up(f"turn {running.attempt.full_id} cannot be stopped at its limit")
            elif over_s > 0:
                self._call(running.stop, Stop.LIMIT)

    def _give_up(self, why: str) -> None:
        log.critical("worker.gives_up", why=why, turns=len(self._kept()), worker=self._worker)
        os._exit(EXIT_STALLED)

    async def _renew(self, queue: TurnQueue, lock: SessionLock) -> None:
        kept = list(self._kept())
        if not kept:
            return
        try:
            held = await queue.beat([running.attempt for running in kept], self._worker)
        except BubError as error:
            # No answer is not a loss: only "not yours" stops a turn.
            log.warning("keeper.no_answer", reason=str(error), worker=self._worker)
            held = [True] * len(kept)
        for running, ours in zip(kept, held, strict=True):
            if not ours:
                self._call(running.stop, Stop.LOST)
        await asyncio.gather(*(self._renew_lock(lock, running) for running in kept))

    async def _renew_lock(self, lock: SessionLock, running: RunningTurn) -> None:
        if running.grant is None:
            return
        try:
            if not await lock.renew(running.grant):
                self._call(running.stop, Stop.LOST)
        except BubError as error:
            log.warning("keeper.no_answer", reason=str(error), worker=self._worker)

    def _call(self, function: object, *args: object) -> None:
        # The loop may be closing while the last beat is under way.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)  # type: ignore[arg-type]
