"""Why a turn that somebody follows does not go on: said once, and again when the reason changes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from bub_redis.cli.output import note
from bub_redis.cli.waiting import NO_WORKER
from bub_redis.errors import BubError
from bub_redis.tasks import ended
from bub_redis.turns import Turn, TurnClient
from bub_redis.turns.overview import OpenTurn, QueueOverview
from bub_redis.turns.workers import Workers

_LOOK_S = 1.0
"""How often the queue is looked at. The first time is as late: only what lasts is worth a line."""


@asynccontextmanager
async def standstill_told(
    client: TurnClient, turn: Turn, end_line: Callable[[], None], *, told: str = ""
) -> AsyncIterator[None]:
    """Say on stderr, while the block runs, why the turn does not go on. `told` was said before."""
    telling = asyncio.create_task(_tell(client, turn, end_line, told))
    try:
        yield
    finally:
        # What goes wrong is for whoever follows to meet.
        with suppress(BubError):
            await ended(telling)


async def _tell(client: TurnClient, turn: Turn, end_line: Callable[[], None], told: str) -> None:
    overview = QueueOverview(client.queue)
    while True:
        await asyncio.sleep(_LOOK_S)
        turns = await overview.turns_of(turn.tape)
        reason = standstill(turn, turns, worker_lives=bool(turns and await Workers(client.queue).alive()))
        if reason and reason != told:
            told = reason
            end_line()
            note(reason)


def standstill(turn: Turn, turns: Sequence[OpenTurn], *, worker_lives: bool) -> str:
    """Why a turn among the open ones of its session does not go on; empty if it runs, has ended or only waits."""
    own = next((one for one in turns if one.turn.id == turn.id), None)
    if own is None:
        return ""
    head = turns[0]
    if head.status == "running" and not head.overdue:
        return ""
    if not worker_lives:
        return NO_WORKER
    if head.status == "running" or not head.handed_back:
        return ""
    who = "the turn" if head is own else f"turn {head.turn.id} before it"
    return f"{who} {'is blocked' if head.blocked else 'was handed back and is tried again'}: {head.handed_back}"
