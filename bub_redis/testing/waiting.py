"""Waiting for a condition instead of for a while."""

import asyncio
from collections.abc import Awaitable, Callable


async def wait_until(
    predicate: Callable[[], object | Awaitable[object]],
    what: str,
    *,
    timeout_s: float = 10.0,
    interval_s: float = 0.01,
) -> None:
    """Return as soon as `predicate`, sync or async, gives something true; it is asked at least once.

    `what` is the sentence a failing test shows: "the turn is finished". Raises AssertionError if it was not so within
    `timeout_s` seconds, and what the predicate raises.
    """
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            while not await _ask(predicate):  # noqa: ASYNC110 - what other processes do sets no event here
                await asyncio.sleep(interval_s)
    except TimeoutError:
        if not limit.expired():  # the predicate's own
            raise
        raise AssertionError(f"not within {timeout_s:g} s: {what}") from None


async def _ask(predicate: Callable[[], object | Awaitable[object]]) -> object:
    answer = predicate()
    return await answer if isinstance(answer, Awaitable) else answer
