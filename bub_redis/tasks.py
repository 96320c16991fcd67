"""Tasks in the background: how they outlive what nobody foresaw, and how their owners end them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

log = structlog.get_logger(__name__)


async def run_for_good(name: str, work: Callable[[], Awaitable[None]], *, pause_s: float = 1.0) -> None:
    """Run `work` until cancelled; where it fails, log `task.failed` with a traceback and begin again after a pause.

    For work that its process cannot do without, and that nobody awaits before the process stops.
    """
    while True:
        try:
            await work()
        except Exception:
            # A defect, or a foreign value nobody foresaw: silence until the process stops would be worse.
            log.exception("task.failed", task=name)
        await asyncio.sleep(pause_s)


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel the task and wait for its end; nothing happens to one that has ended.

    Raises what it failed with. Where the caller itself is cancelled meanwhile, that is raised, and not taken for the
    end of the task, as it would be by awaiting it and passing over its cancellation.
    """
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
