"""Waiting for what a turn shows to its followers."""

from contextlib import aclosing

from bub_redis.turns import Turn, TurnClient


async def shown(client: TurnClient, turn: Turn, kind: str) -> None:
    """Return once the turn shows a frame of that kind; fail if it ends without one."""
    async with aclosing(client.follow(turn)) as frames:
        async for frame in frames:
            if frame.type == kind:
                return
    raise AssertionError(f"turn {turn.id} ended without a {kind!r} frame")
