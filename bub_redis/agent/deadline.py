"""Deadlines of what is streamed, which count the time waited and not the time the reader takes."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def within(
    events: AsyncGenerator[T, None], seconds: float | None, late: Callable[[], Exception]
) -> AsyncGenerator[T, None]:
    """The events; what `late` makes is raised once they took `seconds` in all. None waits for ever.

    Each event is waited for by itself: a scope around the whole would cancel the reader while it works.
    """
    left = seconds
    async with aclosing(events):
        while True:
            began = time.monotonic()
            deadline = asyncio.timeout(left)
            try:
                async with deadline:
                    event = await anext(events)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not deadline.expired():  # somebody else's
                    raise
                raise late() from None
            if left is not None:
                left -= time.monotonic() - began
            yield event
