"""Workers for tests: one in this process, and real ones that can be killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from arq.connections import ArqRedis

from bub_redis.agent import Agent
from bub_redis.settings import Settings
from bub_redis.storage import RedisServer
from worker.jobs import new_worker_id, open_runtime
from worker.worker import TurnWorker


@asynccontextmanager
async def working(settings: Settings, agent: Agent) -> AsyncIterator[TurnWorker]:
    """A worker in this event loop, drained at the end."""
    async with AsyncExitStack() as stack:
        runtime = await open_runtime(stack, settings, agent, new_worker_id())
        arq_server = await stack.enter_async_context(RedisServer(settings.queue_address))
        worker = TurnWorker(runtime, settings, ArqRedis(pool_or_conn=arq_server.commands.connection_pool))
        running = asyncio.create_task(worker.async_run())
        try:
            yield worker
        finally:
            worker.drain()
            with suppress(asyncio.CancelledError):
                await running


def start_worker(
    settings: Settings, agent: str, *, tree: Path | None = None, **environment: str
) -> subprocess.Popen[bytes]:
    """A worker process for `module:attribute`, as `bub-redis worker` starts it; of another source tree if given."""
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("BUB_")},
        "BUB_REDIS_URL": settings.queue_address,
        "BUB_NAMESPACE": settings.namespace,
        "BUB_LEASE_S": str(settings.lease_s),
        "BUB_BEAT_S": str(settings.beat_s),
        "BUB_RECONCILE_S": str(settings.reconcile_s),
        "BUB_WAITING_GRACE_S": str(settings.waiting_grace_s),
        "BUB_DRAIN_S": str(settings.drain_s),
        "BUB_LOOP_STALL_S": str(settings.loop_stall_s),
        "BUB_MAX_JOBS": str(settings.max_jobs),
        **({"BUB_TAPE_URL": settings.tape_address} if settings.tape_url else {}),
        **environment,
    }
    return subprocess.Popen([sys.executable, "-m", "bub_redis.cli", "worker", agent], env=env, cwd=tree)


@contextmanager
def worker_processes(settings: Settings, agent: str, count: int = 1) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Worker processes, killed at the end."""
    processes = [start_worker(settings, agent) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL, and gone when this returns. May be repeated."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    process.wait()
