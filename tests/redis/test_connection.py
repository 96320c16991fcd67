"""A connection is a guest in the task that uses it: it gives up when it is told to."""

import asyncio

from bub_redis.turns import TurnClient


async def test_no_cancellation_is_lost_whenever_it_comes(client: TurnClient) -> None:
    async def ping_on() -> None:
        while True:
            await client.server.commands.ping()

    for steps in range(60):
        work = asyncio.create_task(ping_on())
        for _ in range(steps):
            await asyncio.sleep(0)  # noqa: TID251 - a step of the event loop, not a time
        work.cancel()
        done, _ = await asyncio.wait({work}, timeout=1)
        assert done and work.cancelled()
