"""Our own Worker with jobs that do nothing, `python -m benchmarks.no_op`: arq, the claim and the loop."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from arq.connections import ArqRedis

from bub_redis.settings import load_settings
from bub_redis.storage.client import RedisServer
from bub_redis.turns.queue import TurnQueue
from worker.jobs import Runtime
from worker.settings import arq_options, serialize
from worker.worker import TurnWorker


@dataclass
class _Nothing(Runtime):
    async def run(self, job_id: str) -> None:
        """Do nothing."""


async def _work() -> None:
    settings = load_settings()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(RedisServer(settings.queue_address))
        arq_server = await stack.enter_async_context(RedisServer(settings.queue_address))
        absent: Any = None
        runtime = _Nothing("no-op", TurnQueue(server, settings), absent, absent)
        pool = ArqRedis(
            pool_or_conn=arq_server.commands.connection_pool,
            job_serializer=serialize,
            default_queue_name=arq_options(settings)["queue_name"],
        )
        await TurnWorker(runtime, settings, pool).async_run()


if __name__ == "__main__":
    asyncio.run(_work())
