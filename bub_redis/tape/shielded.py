"""Work that must not stop half-way, whoever is cancelled meanwhile."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


async def to_its_end(work: Coroutine[Any, Any, _Answer], *, patience_s: float | None = None) -> _Answer:
    """Await `work`, to its end also where the caller is cancelled: that is raised once it has ended (case 171).

    Work that goes on for `patience_s` behind the cancellation is cancelled as well. Raises what `work` raises; where
    the caller was cancelled, as the cause of that.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError as cancelled:
        if patience_s is not None:
            asyncio.get_running_loop().call_later(patience_s, task.cancel)
        while not task.done():
            # Again and again within a scope of anyio, which cancels each await.
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise cancelled from failure
        raise
