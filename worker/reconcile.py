"""The reconciler: each worker looks every second for turns that nobody looks after, and shows that it lives."""

import asyncio
import os
import socket
from collections.abc import Callable

import structlog

from bub_redis.errors import BubError
from bub_redis.settings import Settings
from bub_redis.turns.overview import QueueOverview
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.workers import WorkerLoad, Workers

log = structlog.get_logger(__name__)


class Reconciler:
    """Runs beside a worker's turns. Any number of them may run at once: each act is one script."""

    def __init__(self, queue: TurnQueue, settings: Settings, worker: str, running: Callable[[], int]) -> None:
        self._queue = queue
        self._settings = settings
        self._worker = worker
        self._running = running

    async def run(self) -> None:
        """Reconcile and show a heartbeat, until cancelled; outages are outlived, and said once."""
        out = False
        while True:
            try:
                await self._once()
                if out:
                    log.info("server.back", worker=self._worker)
                out = False
            except BubError as error:
                if not out:
                    log.warning("server.out", reason=str(error), worker=self._worker)
                out = True
            await asyncio.sleep(self._settings.reconcile_s)

    async def _once(self) -> None:
        if acts := await self._queue.reconcile():
            names = await QueueOverview(self._queue).named([full_id for _, full_id in acts])
            for (what, _), named in zip(acts, names, strict=True):
                log.info("turn.reconciled", what=what, **named, worker=self._worker)
        load = WorkerLoad(self._worker, socket.gethostname(), os.getpid(), self._running(), self._settings.max_jobs)
        await Workers(self._queue).heartbeat(load, ttl_s=max(10 * self._settings.reconcile_s, 10.0))
