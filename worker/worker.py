"""The worker: arq's, with a claim that is one script, a wake-up without polling, and a life through outages.

Relies on names of arq 0.28 that are not its public face; tests/redis/test_arq_contract.py holds each of them.
"""

import asyncio
import signal
from contextlib import AsyncExitStack, suppress
from typing import Any

import redis.exceptions as redis_errors
import structlog
from arq.connections import ArqRedis
from arq.worker import Worker

from bub_redis.agent import Agent
from bub_redis.agent.model import ModelClient
from bub_redis.errors import BubError
from bub_redis.settings import Settings
from bub_redis.storage.client import RedisServer
from bub_redis.tasks import ended, run_for_good
from bub_redis.turns.running import Stop
from worker.jobs import Runtime, new_worker_id, open_runtime
from worker.load import load_agent
from worker.settings import arq_options, serialize

log = structlog.get_logger(__name__)

_IDLE_S = 0.5
"""How long to sleep without a hint that there is work: the net under lost hints, and for turns whose pause is over."""
_LONGEST_BACKOFF_S = 5.0
_HAND_BACK_S = 10.0
"""How long turns may take to be handed back before the process stops all the same."""
_OUTAGES = (redis_errors.RedisError, OSError, BubError)


class TurnWorker(Worker):
    """An arq worker for our queue. One event loop, one runtime."""

    def __init__(self, runtime: Runtime, settings: Settings, pool: ArqRedis) -> None:
        super().__init__(
            **arq_options(settings),
            redis_pool=pool,
            poll_delay=0,
            handle_signals=False,
            ctx={"runtime": runtime},
        )
        self._runtime = runtime
        self._drain_s = settings.drain_s
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self._backoff_s = 0.0

    async def main(self) -> None:
        """Run until drained."""
        listening = asyncio.create_task(run_for_good("wake-up", self._listen))
        try:
            await super().main()
        finally:
            await ended(listening)

    async def _poll_iteration(self) -> None:
        try:
            await self._claim()
            self._backoff_s = 0.0
        except _OUTAGES:
            self._backoff_s = min(max(self._backoff_s * 2, 0.1), _LONGEST_BACKOFF_S)
        self._reap()
        # Not wait_for, which in Python 3.11 swallows a cancellation that comes together with the wake-up.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._backoff_s or _IDLE_S):
                await self._wake.wait()
        self._wake.clear()

    async def _claim(self) -> None:
        free = self.max_jobs - self.job_counter
        if not self.allow_pick_jobs or free <= 0:
            return
        for job_id in await self._runtime.queue.claim(free):
            # Nothing awaits between here and the end of the loop, so no slot is given twice.
            await self.sem.acquire()
            self.job_counter += 1
            task = self.loop.create_task(self.run_job(job_id, 0))
            task.add_done_callback(self._released)
            self.tasks[job_id] = task

    def _released(self, _task: asyncio.Task[Any]) -> None:
        self._release_sem_dec_counter_on_complete()
        self._wake.set()

    def _reap(self) -> None:
        for job_id, task in list(self.tasks.items()):
            if task.done():
                del self.tasks[job_id]
                error = None if task.cancelled() else task.exception()
                if error is not None:
                    # arq's own bookkeeping met an outage; the turn itself is safe with the queue.
                    log.warning("job.ended_badly", job=job_id, error=type(error).__name__)

    async def _listen(self) -> None:
        """Wait for hints that there is work; only while there is a free slot, so that another worker gets them."""
        while True:
            if not self.allow_pick_jobs or self.job_counter >= self.max_jobs:
                await asyncio.sleep(_IDLE_S)
                continue
            try:
                await self._runtime.queue.wait_for_work()
                self._wake.set()
            except _OUTAGES:
                await asyncio.sleep(_IDLE_S)

    def drain(self) -> None:
        """Stop claiming, give running turns their grace, hand the rest back, stop. Called again: without grace."""
        if self._draining is not None:
            self._hurry.set()
            return
        log.info("worker.drains", turns=len(self.tasks), grace_s=self._drain_s, worker=self._runtime.worker)
        self.allow_pick_jobs = False
        self._draining = self.loop.create_task(self._drain())

    async def _drain(self) -> None:
        hurry = asyncio.create_task(self._hurry.wait())
        done = asyncio.create_task(self._all_done())
        await asyncio.wait({hurry, done}, timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        done.cancel()
        self._runtime.keeper.stop_all(Stop.DRAIN)
        if self.tasks:
            await asyncio.wait(set(self.tasks.values()), timeout=_HAND_BACK_S)
        if self.main_task:
            self.main_task.cancel()

    async def _all_done(self) -> None:
        if self.tasks:
            await asyncio.wait(set(self.tasks.values()))


async def run_worker(settings: Settings) -> None:
    """Run a worker until it is told to stop by SIGTERM, SIGINT or SIGHUP.

    Raises Outage, ConfigError or ServerUnfit if it cannot start; once it runs, it outlives outages.
    """
    agent = await load_agent(settings)
    worker_id = new_worker_id()
    async with AsyncExitStack() as stack:
        runtime = await open_runtime(stack, settings, agent, worker_id)
        # arq closes the pool it was given, so it gets one of its own.
        arq_server = await stack.enter_async_context(RedisServer(settings.queue_address))
        pool = ArqRedis(
            pool_or_conn=arq_server.commands.connection_pool,
            job_serializer=serialize,
            default_queue_name=arq_options(settings)["queue_name"],
        )
        worker = TurnWorker(runtime, settings, pool)
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(signum, worker.drain)
        name = settings.agent or agent.name
        _warn_of_model(agent, name)
        log.info("worker.ready", agent=name, max_jobs=settings.max_jobs, worker=worker_id)
        with suppress(asyncio.CancelledError):
            await worker.async_run()
        log.info("worker.stopped", worker=worker_id)


def _warn_of_model(agent: Agent, name: str) -> None:
    """Log what the agent's models lack. It is no error: a turn may name its own."""
    if agent.model is None:
        log.warning(
            "agent.has_no_model",
            agent=name,
            remedy="set BUB_MODEL; until then every turn fails that names no model of its own (--model)",
        )
    for model in (agent.model, *agent.fallbacks):
        if model is not None and (key := ModelClient.of(model).missing_key()):
            log.warning("model.has_no_key", model=ModelClient.of(model).spec, agent=name, remedy=f"set {key}")
