"""`bub-redis turn result`."""

import asyncio

from bub_redis.cli.connect import connected
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal, note, print_json, printable
from bub_redis.cli.patience import Patience
from bub_redis.errors import Outage, TimedOut
from bub_redis.turns import Turn, TurnClient
from bub_redis.turns.record import TurnResult

_OPEN = frozenset({"queued", "running", "steering"})


async def print_result(session: str, turn_id: str, *, wait_s: float, as_json: bool) -> ExitCode:
    """Print how the turn ended; OK if it completed, NOT_FOUND if its tape was reset since, else FAILED.

    Raises TimedOut if it has not ended, NotFound, and what `connected` raises.
    """
    async with connected() as client:
        turn = client.turn(session, turn_id)
        standing = await client.queue.standing(turn)
        if standing is not None and standing.status in _OPEN and not wait_s:
            raise TimedOut(f"turn {turn_id!r} has not ended; wait for it with --wait SECONDS")
        try:
            async with asyncio.timeout(wait_s or None):
                ended = await _ended(client, turn)
        except TimeoutError:
            raise TimedOut(f"turn {turn_id!r} has not ended within {wait_s:g} s; it goes on") from None
    if as_json:
        print_json(ended.as_dict())
    elif ended.text is not None:
        Terminal().print(printable(ended.text))
    if ended.status == "completed":
        if ended.receipt is not None:
            return ExitCode.OK
        if not as_json:
            note("the tape was reset since: its answer is not there any more")
        return ExitCode.NOT_FOUND
    if not as_json:
        note(f"{ended.status}: {ended.error}" if ended.error else ended.status)
    return ExitCode.FAILED


async def _ended(client: TurnClient, turn: Turn) -> TurnResult:
    """How the turn ended, once it has; outlives outages."""
    patience = Patience(limit_s=None)
    while True:
        try:
            return await client.result(turn)
        except Outage as outage:
            await patience.wait(outage)
