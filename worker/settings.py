"""How arq is set up: as a shell that runs each attempt once and decides nothing."""

import json
from contextlib import AsyncExitStack
from typing import Any

import structlog
from arq.connections import RedisSettings
from arq.worker import func

from bub_redis.settings import Settings, load_settings
from bub_redis.storage.keys import QueueKeys
from bub_redis.turns.record import JOB_NAME
from worker.jobs import new_worker_id, open_runtime, run_turn
from worker.load import load_agent
from worker.telemetry import configure_logging

log = structlog.get_logger(__name__)

_JOB_TIMEOUT_S = 30 * 86_400.0
"""Longer than any outage: a turn ends by the keeper's limit, and arq's timeout must not cut off one that waits for its
server to be handed back, or it would be charged with a crash that was none."""


def serialize(job: dict[str, Any]) -> bytes:
    """JSON, never pickle, which lets anybody who can write to Redis run code. What JSON cannot say becomes text."""
    return json.dumps(job, default=str).encode()


def arq_options(settings: Settings) -> dict[str, Any]:
    """The options of every arq worker on our queue: one try, no result, our JSON."""
    return {
        "functions": [func(run_turn, name=JOB_NAME)],
        "queue_name": QueueKeys(settings.namespace).arq,
        "max_jobs": settings.max_jobs,
        "max_tries": 1,
        "retry_jobs": False,
        "keep_result": 0,
        "job_timeout": _JOB_TIMEOUT_S,
        "allow_abort_jobs": False,
        "log_results": False,
        "job_serializer": serialize,
        "job_deserializer": json.loads,
    }


def stock_worker_settings() -> type:
    """A settings class for `arq worker.WorkerSettings`, from `BUB_*`. Raises ConfigError."""
    settings = load_settings()
    stack = AsyncExitStack()

    async def on_startup(ctx: dict[Any, Any]) -> None:
        configure_logging()
        ctx["runtime"] = await open_runtime(stack, settings, await load_agent(settings), new_worker_id())
        log.warning("worker.stock", reason="a stock arq worker wakes up by polling and does not outlive an outage")

    async def on_shutdown(_ctx: dict[Any, Any]) -> None:
        await stack.aclose()

    options = arq_options(settings) | {
        "redis_settings": RedisSettings.from_dsn(settings.queue_address),
        "on_startup": on_startup,
        "on_shutdown": on_shutdown,
        # Running jobs stay in a stock worker's queue until they end; it must see beyond those of the whole fleet.
        "queue_read_limit": 10_000,
    }
    return type("WorkerSettings", (), options)
