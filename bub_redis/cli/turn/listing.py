"""`bub-redis turn list`."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from bub_redis.cli.connect import connected
from bub_redis.cli.output import Terminal, print_json
from bub_redis.cli.rendering import ago, moment_text
from bub_redis.cli.waiting import why
from bub_redis.errors import NotFound
from bub_redis.tape import Receipt, TapeEntry, TapeQuery
from bub_redis.tape.receipt import receipt_in
from bub_redis.turns import TurnClient
from bub_redis.turns.overview import OpenTurn, QueueOverview


async def list_turns(session: str | None, *, last: int, as_json: bool) -> None:
    """Print the turns. Raises NotFound for a session that has neither turns nor a tape, and what `connected` raises."""
    async with connected() as client:
        overview = QueueOverview(client.queue)
        if session is None:
            print_open(await overview.turns(), as_json=as_json)
            return
        tape = client.turn(session, "any").tape
        waiting = await overview.turns_of(tape)
        ended = [entry async for entry in _ended(client, tape, last)]
        if not waiting and not (await client.store.head(tape)).last:
            raise NotFound(f"session {session!r} has no turns in namespace {client.queue.namespace!r}")
    _print_session(list(reversed(ended)), waiting, as_json=as_json)


async def _ended(client: TurnClient, tape: str, last: int) -> AsyncIterator[tuple[TapeEntry, Receipt]]:
    """The last receipts of a tape, newest first."""
    async for entry in client.store.newest_first(TapeQuery(tape, client.store).kinds("event")):
        if last <= 0:
            return
        if receipt := receipt_in(entry):
            last -= 1
            yield entry, receipt


def print_open(turns: list[OpenTurn], *, as_json: bool) -> None:
    """Print turns that have not ended, with session and reason."""
    if as_json:
        for turn in turns:
            print_json(_open_turn_json(turn))
        return
    if not turns:
        Terminal().print("no turn is open")
        return
    rows = [(turn.turn.session, turn.turn.id, turn.status, ago(turn.enqueued_ms), why(turn)) for turn in turns]
    Terminal().columns(("SESSION", "TURN", "STATUS", "SENT", "WHY"), rows)


def _open_turn_json(turn: OpenTurn) -> dict[str, Any]:
    return {**asdict(turn), "blocked": turn.blocked, "why": why(turn)}


def _print_session(ended: list[tuple[TapeEntry, Receipt]], waiting: list[OpenTurn], *, as_json: bool) -> None:
    if as_json:
        for entry, receipt in ended:
            print_json({"turn": receipt.turn, "status": receipt.status, "date": entry.date, "entry": entry.id})
        for turn in waiting:
            print_json(_open_turn_json(turn))
        return
    rows: list[tuple[str, ...]] = [
        (receipt.turn, receipt.status, moment_text(entry.date), receipt.error or f"entries {receipt.first}-{entry.id}")
        for entry, receipt in ended
    ]
    rows.extend((turn.turn.id, turn.status, ago(turn.enqueued_ms), why(turn)) for turn in waiting)
    Terminal().columns(("TURN", "STATUS", "WHEN", ""), rows)
