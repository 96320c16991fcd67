"""The one arq job, and what a process needs to run it: opened at start-up, closed at the end, whatever the worker."""

import asyncio
import secrets
import socket
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import structlog

from bub_redis.agent import Agent
from bub_redis.errors import BubError, ServerUnfit
from bub_redis.settings import Settings
from bub_redis.storage.client import RedisServer
from bub_redis.storage.rights import missing_rights, queue_samples, tape_samples
from bub_redis.storage.script import Replicas
from bub_redis.storage.store import RedisTapeStore
from bub_redis.tape.spill import SpillStore
from bub_redis.tasks import ended, run_for_good
from bub_redis.turns.attempt import Attempt
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.runner import TurnRunner
from bub_redis.turns.workers import Workers
from worker.keeper import LeaseKeeper
from worker.reconcile import Reconciler

_HEED_PAUSE_S = 1.0

log = structlog.get_logger(__name__)


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

    An agent that brings no sidecar of its own gets a SpillStore, so that large results stay out of its tapes.

    Raises Outage, ConfigError or ServerUnfit if a server cannot be used.
    """
    if not agent.sidecars:
        agent.mount(SpillStore(threshold_tokens=settings.spill_threshold))
    queue_keys, tape_keys = queue_samples(settings.namespace), tape_samples(settings.namespace)
    on_queue = queue_keys if settings.tape_url else queue_keys + tape_keys
    server = tape_server = await _connected(stack, settings.queue_address, settings, on_queue)
    await server.check_single()
    if settings.tape_url is not None:
        tape_server = await _connected(stack, settings.tape_address, settings, tape_keys)
    replicas = Replicas(settings.wait_replicas, settings.wait_replicas_s) if settings.wait_replicas else None
    store = RedisTapeStore(tape_server, namespace=settings.namespace, lease_s=settings.lease_s, replicas=replicas)
    queue = TurnQueue(server, settings)
    keeper = LeaseKeeper(settings, worker)
    runtime = Runtime(worker, queue, TurnRunner(agent, queue, store, settings, keeper), keeper)
    stack.push_async_callback(_say_goodbye, queue, worker)
    keeper.start()
    stack.callback(keeper.close)
    reconciler = Reconciler(queue, settings, worker, lambda: runtime.running)
    for name, work in (("reconciler", reconciler.run), ("control", lambda: _heed(queue, keeper, worker))):
        stack.push_async_callback(ended, asyncio.create_task(run_for_good(name, work)))
    return runtime


async def _connected(stack: AsyncExitStack, url: str, settings: Settings, keys: list[str]) -> RedisServer:
    """A server that may be used; what its configuration puts at risk is logged (case 139), and rights that lack."""
    server = await stack.enter_async_context(RedisServer(url))
    async with server.primaries() as primaries:
        for primary in primaries:
            info = await primary.check(force=settings.force)
            if info.is_replica:
                raise ServerUnfit(f"{primary.address} is a replica, which takes no writes; name the primary")
            if info.may_drop_tapes:
                log.warning("server.may_drop_tapes", server=primary.address, eviction_policy=info.eviction_policy)
            if not info.append_only:
                log.warning("server.forgets_at_restart", server=primary.address, remedy="appendonly yes")
            if missing := await missing_rights(primary, keys):
                log.warning("server.rights_missing", server=primary.address, rights=missing, remedy="bub-redis doctor")
    return server


async def run_turn(ctx: dict[Any, Any], _full_id: str) -> None:
    """The arq function: run one attempt. The job id names it; the argument is for people who read the queue."""
    await ctx["runtime"].run(ctx["job_id"])


async def _heed(queue: TurnQueue, keeper: LeaseKeeper, worker: str) -> None:
    """Look after a turn as soon as word comes that it was cancelled; the beat would find out later."""
    while True:
        try:
            await queue.wait_for_control(worker)
            await keeper.look(queue)
        except BubError:
            await asyncio.sleep(_HEED_PAUSE_S)


async def _say_goodbye(queue: TurnQueue, worker: str) -> None:
    # Whatever it is, the worker stops, and its heartbeat expires.
    with suppress(BubError):
        await Workers(queue).say_goodbye(worker)
