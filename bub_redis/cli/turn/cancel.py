"""`bub-redis turn cancel`."""

from bub_redis.cli.connect import connected
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal, print_json

_SAID = {
    "cancelled": "cancelled: it never started, and nothing of it is on the tape",
    "cancelling": "cancelling: it is stopped, and what it did so far is kept on the tape",
}


async def cancel_turn(session: str, turn_id: str, *, as_json: bool) -> ExitCode:
    """Cancel the turn and say what came of it; FAILED if it had ended otherwise. Raises NotFound, Outage."""
    async with connected() as client:
        turn = client.turn(session, turn_id)
        came = await client.cancel(turn)
        standing = await client.queue.standing(turn)
    if as_json:
        print_json({"turn": turn_id, "outcome": came})
    elif came == "cancelled" and standing and standing.receipt:
        Terminal().print("cancelled before: what it did until then is kept on the tape")
    elif standing and standing.status == "steering":
        Terminal().print("cancelling: its turn does not use this message, unless it has already")
    else:
        Terminal().print(_SAID.get(came, f"not cancelled: it had ended before ({came})"))
    return ExitCode.OK if came in _SAID else ExitCode.FAILED
