"""`bub-redis turn enqueue`."""

from dataclasses import asdict

from bub_redis.cli.connect import connected
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal, print_json
from bub_redis.cli.turn.follow import follow_turn


async def enqueue_turn(
    session: str, text: str, *, turn_id: str | None, model: str | None, follow: bool, as_json: bool
) -> ExitCode:
    """Put the turn on its session's list and say so; with `follow`, show it to its end.

    Raises InvalidInput, Conflict, and what `connected` raises.
    """
    async with connected() as client:
        turn = await client.enqueue(session, text, turn_id=turn_id, model=model)
        if as_json:
            print_json(asdict(turn))
        else:
            Terminal().print(f"turn {turn.id} of session {turn.session}", style="dim")
        return await follow_turn(client, turn, as_json=as_json) if follow else ExitCode.OK
