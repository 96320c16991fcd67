"""`bub-redis queue dead` and `bub-redis queue retry`."""

from dataclasses import asdict

from bub_redis.cli.connect import connected
from bub_redis.cli.output import Terminal, print_json
from bub_redis.cli.rendering import ago
from bub_redis.errors import NotFound

_MOST_SEARCHED = 10_000


async def list_dead(limit: int, *, as_json: bool) -> None:
    """Print the dead turns, newest first. Raises what `connected` raises."""
    async with connected() as client:
        dead = await client.dead(most=limit)
    if as_json:
        for one in dead:
            print_json({**asdict(one.request.turn), "prompt": one.request.prompt, "died_ms": one.died_ms})
    elif dead:
        rows = [(one.request.turn.session, one.request.turn.id, ago(one.died_ms), one.request.prompt) for one in dead]
        Terminal().columns(("SESSION", "TURN", "DIED", "PROMPT"), rows)
    else:
        Terminal().print("no turn is dead")


async def retry_dead(session: str, turn_id: str, *, as_json: bool) -> None:
    """Send a dead turn again and say under which id. Raises NotFound, QueueFull, and what `connected` raises."""
    async with connected() as client:
        wanted = client.turn(session, turn_id)
        for one in await client.dead(most=_MOST_SEARCHED):
            if one.request.turn == wanted:
                turn = await client.retry(one)
                break
        else:
            raise NotFound(
                f"turn {turn_id!r} of session {session!r} is not dead; `bub-redis queue dead` lists those that are"
            )
    if as_json:
        print_json(asdict(turn))
    else:
        Terminal().print(f"turn {turn.id} of session {turn.session}")
