"""`bub-redis turn steer`."""

from dataclasses import asdict

from bub_redis.cli.connect import connected
from bub_redis.cli.output import Terminal, print_json
from bub_redis.errors import InvalidInput


async def steer_turn(session: str, turn_id: str, text: str, *, steer_id: str | None, as_json: bool) -> None:
    """Send the message and say where it went. Raises InvalidInput, Conflict, QueueFull, and what `connected` raises."""
    if not text.strip():
        raise InvalidInput("the message is empty; write what the model is to see")
    async with connected() as client:
        own = await client.steer(client.turn(session, turn_id), text, steer_id=steer_id)
    if as_json:
        print_json({"steered": own is None, "turn": None if own is None else asdict(own)})
    elif own is None:
        Terminal().print(f"taken into turn {turn_id}")
    else:
        Terminal().print(f"turn {turn_id} has ended or is not known: the message is turn {own.id} of its own")
