"""Stock arq: enqueueing, and a worker at its defaults. It is also the settings module of that worker."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from arq.connections import RedisSettings, create_pool
from arq.constants import default_queue_name
from serve import Act, per_second, serve

REPLIES = "bench:replies"


async def answer(ctx: dict[str, Any], prompt: str) -> None:
    """Say that the job has begun, where somebody waits for it."""
    await ctx["redis"].lpush(REPLIES, "1")


async def nothing(ctx: dict[str, Any], prompt: str) -> None:
    """Do nothing."""


class WorkerSettings:
    """All else is arq's default."""

    functions = (answer, nothing)
    redis_settings = RedisSettings.from_dsn(os.environ.get("BENCH_URL", "redis://localhost"))


async def begin(url: str) -> dict[str, Act]:
    pool = await create_pool(RedisSettings.from_dsn(url))

    async def enqueue(count: int, producers: int) -> float:
        return await per_second(lambda _: pool.enqueue_job("nothing", "Hello", _job_id=uuid4().hex), count, producers)

    async def worker() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("arq")),
            "arq_side.WorkerSettings",
            cwd=Path(__file__).parent,
            env={**os.environ, "BENCH_URL": url},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def pickup(count: int) -> list[float]:
        """How long it takes from enqueueing to the job's first word, one after another."""
        working = await worker()
        found = []
        for _ in range(count + 1):
            began = time.perf_counter()
            await pool.enqueue_job("answer", "Hello")
            await pool.execute_command("BLPOP", REPLIES, 0)
            found.append(time.perf_counter() - began)
        working.kill()
        await working.wait()
        # The first one waits for the worker to start.
        return found[1:]

    async def jobs(count: int) -> float:
        """How many jobs in a second a worker does that finds them waiting, from a tenth to nine tenths of them."""
        for _ in range(count):
            await pool.enqueue_job("nothing", "Hello")
        working = await worker()
        marks = []
        for left in (count * 9 // 10, count // 10):
            while await pool.zcard(default_queue_name) > left:
                await asyncio.sleep(0.005)
            marks.append(time.perf_counter())
        working.kill()
        await working.wait()
        await pool.flushdb()
        return (count * 9 // 10 - count // 10) / (marks[1] - marks[0])

    return {"enqueue": enqueue, "pickup": pickup, "jobs": jobs}


if __name__ == "__main__":
    serve(begin)
