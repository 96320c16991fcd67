"""A reference's side of the conversation: one JSON line in, one out. Runs in the reference's own environment."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

Act = Callable[..., Awaitable[Any]]


def serve(begin: Callable[[str], Awaitable[dict[str, Act]]]) -> None:
    """Answer until the input ends; `begin` gets the server's URL and returns what can be asked for."""

    async def main() -> None:
        acts = await begin(sys.argv[1])
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            answer = await acts[command.pop("what")](**command)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()

    asyncio.run(main())


async def seconds(work: Awaitable[Any]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def per_second(act: Callable[[int], Awaitable[Any]], count: int, producers: int) -> float:
    """How often `act` can be done in a second, by so many producers at once."""

    async def produce(number: int) -> None:
        for place in range(number, count, producers):
            await act(place)

    return count / await seconds(asyncio.gather(*map(produce, range(producers))))
