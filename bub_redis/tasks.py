"""Tasks in the background, and how their owners end them."""

import asyncio
from typing import Any


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel the task and wait for its end; nothing happens to one that has ended.

    Raises what it failed with. Where the caller itself is cancelled meanwhile, that is raised, and not taken for the
    end of the task, as it would be by awaiting it and passing over its cancellation.
    """
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
