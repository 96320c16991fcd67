"""The keeper: a thread that renews the leases of this worker's turns, so that a busy event loop does not lose them.

It renews only while the loop still answers. A loop that is blocked for good, or a turn that cannot be stopped at its
limit, ends the process: all its turns go on elsewhere.
"""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from bub_redis.errors import BubError
from bub_redis.settings import Settings
from bub_redis.storage.client import RedisServer
from bub_redis.storage.lock import SessionLock
from bub_redis.turns.attempt import Beat
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.running import RunningTurn, Stop

EXIT_STALLED: Final = 70
"""The exit code of a worker that could not go on: EX_SOFTWARE of sysexits.h."""

_LAG_S = 0.5
"""A loop that answers later than this is worth a warning."""

_ASK_AGAIN_S = 0.2
"""How soon a server that did not answer is asked again."""
_WATCH_S = 1.0
"""How often the loop and the limits of turns are looked at."""

log = structlog.get_logger(__name__)


class LeaseKeeper:
    """Keeps the leases and locks of running turns from a thread of its own, with connections of its own."""

    def __init__(self, settings: Settings, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self._running: set[RunningTurn] = set()
        self._stopping: Stop | None = None
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
            self._running.add(running)
        if self._stopping is not None:
            # Claimed before the worker was told to stop, and started after.
            running.stop(self._stopping)
        try:
            yield
        finally:
            with self._guard:
                self._running.discard(running)

    async def look(self, queue: TurnQueue) -> None:
        """Ask the queue side at once what the next beat would be told; for hints that a turn was cancelled."""
        kept = self._kept()
        if not kept:
            return
        for running, reason in await self._stopped(queue, kept):
            running.stop(reason)

    def stop_all(self, reason: Stop) -> None:
        """Tell every running turn to stop, and each that is started from now on. Called on the event loop."""
        self._stopping = reason
        for running in self._kept():
            running.stop(reason)

    def _kept(self) -> list[RunningTurn]:
        with self._guard:
            return list(self._running)

    def _run(self) -> None:
        try:
            asyncio.run(self._keep_on())
        except Exception:
            # Turns that nobody renews would run twice.
            log.exception("keeper.failed")
            self._give_up("leases are not renewed any more")

    async def _keep_on(self) -> None:
        """Renew leases and locks side by side: a server that hangs must not cost what the other one holds."""
        settings = self._settings
        # One try, and not longer than a beat: a beat that hangs is worth less than the next one.
        async with (
            RedisServer(settings.queue_address, timeout_s=settings.beat_s, retries=0) as server,
            RedisServer(settings.tape_address, timeout_s=settings.beat_s, retries=0) as tape_server,
        ):
            queue = TurnQueue(server, settings)
            lock = SessionLock(tape_server, settings.namespace, settings.lease_s)
            await asyncio.gather(
                self._each_beat(lambda: self._renew_leases(queue)),
                self._each_beat(lambda: self._renew_locks(lock)),
                self._watch_on(),
            )

    async def _each_beat(self, renew: Callable[[], Awaitable[None]]) -> None:
        """Renew at each beat, and as soon as a server answers again: others wait one beat before they take over."""
        beat_s, told = self._settings.beat_s, False
        while not self._ended.is_set():
            pause_s = beat_s
            if time.monotonic() - self._answered_at < self._settings.loop_stall_s:
                renewing = asyncio.create_task(_failure(renew()))
                # One node that hangs must not cost what the others hold: the next beat does not wait for this one.
                await asyncio.wait({renewing}, timeout=beat_s)
                failure = renewing.result() if renewing.done() else "no answer within a beat"
                if failure:
                    # No answer is not a loss: only "not yours" stops a turn.
                    if not told:
                        log.warning("keeper.no_answer", reason=failure, worker=self._worker)
                    pause_s = min(_ASK_AGAIN_S, pause_s)
                told = bool(failure)
            await asyncio.sleep(pause_s)

    async def _watch_on(self) -> None:
        while not self._ended.is_set():
            self._call(self._answered, time.monotonic())
            self._watch()
            await asyncio.sleep(min(self._settings.beat_s, _WATCH_S))

    def _answered(self, asked_at: float) -> None:
        self._answered_at = time.monotonic()
        lag_s = self._answered_at - asked_at
        if lag_s > _LAG_S:
            # Somebody's code holds the loop: all turns of this worker wait for it.
            log.warning("worker.loop_lag", lag_s=round(lag_s, 3), turns=len(self._kept()), worker=self._worker)

    def _watch(self) -> None:
        """End the process if the loop is blocked for good, or a turn ignores its limit."""
        now = time.monotonic()
        stalled_s = now - self._answered_at
        if stalled_s > self._settings.loop_stall_s + self._settings.stall_grace_s:
            self._give_up(f"the event loop has been blocked for {stalled_s:.0f} s")
        for running in self._kept():
            if running.working_since is None:
                continue
            over_s = now - running.working_since - self._settings.turn_limit_s
            if over_s > self._settings.stall_grace_s:
                self._give_up(f"turn {running.attempt.full_id} cannot be stopped at its limit")
            elif over_s > 0:
                self._call(running.stop, Stop.LIMIT)

    def _give_up(self, why: str) -> None:
        log.critical("worker.gives_up", why=why, turns=len(self._kept()), worker=self._worker)
        os._exit(EXIT_STALLED)

    async def _renew_leases(self, queue: TurnQueue) -> None:
        if kept := self._kept():
            for running, reason in await self._stopped(queue, kept):
                self._call(running.stop, reason)

    async def _stopped(self, queue: TurnQueue, kept: list[RunningTurn]) -> list[tuple[RunningTurn, Stop]]:
        """Renew the leases; which of the turns are to stop, and why."""
        # One that is being started is not the running one yet, also if it is by the time of the answer.
        asked_as_started = [running.started for running in kept]
        beats = await queue.beat([running.attempt for running in kept], self._worker)
        reasons = {Beat.LOST: Stop.LOST, Beat.CANCEL: Stop.CANCEL}
        return [
            (running, reasons[beat])
            for running, beat, started in zip(kept, beats, asked_as_started, strict=True)
            if beat in reasons and started
        ]

    async def _renew_locks(self, lock: SessionLock) -> None:
        granted = [(running, running.grant) for running in self._kept() if running.grant is not None]
        if not granted:
            return
        # Together: by itself each would take a connection, and this thread the interpreter from the turns.
        still_ours = await lock.renew_all([grant for _, grant in granted])
        for (running, _), ours in zip(granted, still_ours, strict=True):
            if not ours:
                self._call(running.stop, Stop.LOST)

    def _call(self, function: object, *args: object) -> None:
        # The loop may be closing while the last beat is under way.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)  # type: ignore[arg-type]


async def _failure(renewing: Awaitable[None]) -> str:
    """Why a renewal failed; empty if it did not."""
    try:
        await renewing
    except BubError as error:
        return str(error)
    return ""
