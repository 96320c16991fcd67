"""The one arq job, and what a process needs to run it: opened at start-up, closed at the end, whatever the worker."""

import asyncio
import secrets
import socket
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from bub_redis.agent import Agent
from bub_redis.errors import Outage
from bub_redis.settings import Settings
from bub_redis.storage.client import RedisServer
from bub_redis.storage.store import RedisTapeStore
from bub_redis.turns.queue import Attempt, TurnQueue
from bub_redis.turns.runner import TurnRunner
from worker.keeper import LeaseKeeper
from worker.reconcile import Reconciler


@dataclass
class Runtime:
    """What runs in this process."""

    worker: str
    queue: TurnQueue
    runner: TurnRunner
    keeper: LeaseKeeper
    running: int = 0

    async def run(self, job_id: str) -> None:
        """Run the attempt that an arq job id names."""
        self.running += 1
        try:
            await self.runner.run(Attempt.of_job(job_id, self.queue.namespace, self.worker))
        finally:
            self.running -= 1


def new_worker_id() -> str:
    """A name for this process that no other one has."""
    return f"{socket.gethostname()}-{secrets.token_hex(4)}"


async def open_runtime(stack: AsyncExitStack, settings: Settings, agent: Agent, worker: str) -> Runtime:
    """Connect, and start keeper and reconciler; all is closed with `stack`, also when the start fails half-way.

    Raises Outage, ConfigError or ServerUnfit if a server cannot be used.
    """
    server = await stack.enter_async_context(RedisServer(settings.queue_address))
    await server.check()
    tape_server = server
    if settings.tape_url is not None:
        tape_server = await stack.enter_async_context(RedisServer(settings.tape_address))
        await tape_server.check()
    store = RedisTapeStore(tape_server, namespace=settings.namespace, lease_s=settings.lease_s)
    queue = TurnQueue(server, settings)
    keeper = LeaseKeeper(settings, worker)
    runtime = Runtime(worker, queue, TurnRunner(agent, queue, store, settings, keeper), keeper)
    stack.push_async_callback(_say_goodbye, queue, worker)
    keeper.start()
    stack.callback(keeper.close)
    reconciling = asyncio.create_task(Reconciler(queue, settings, worker, lambda: runtime.running).run())
    stack.push_async_callback(_cancel, reconciling)
    return runtime


async def run_turn(ctx: dict[Any, Any], _full_id: str) -> None:
    """The arq function: run one attempt. The job id names it; the argument is for people who read the queue."""
    await ctx["runtime"].run(ctx["job_id"])


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _say_goodbye(queue: TurnQueue, worker: str) -> None:
    with suppress(Outage):
        await queue.say_goodbye(worker)
