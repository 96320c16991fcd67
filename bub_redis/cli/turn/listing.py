"""`bub-redis turn list`."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from bub_redis.cli.connect import connected
from bub_redis.cli.embedded import command_settings
from bub_redis.cli.output import Terminal, note, print_json
from bub_redis.cli.rendering import ago, moment_text, seconds_text
from bub_redis.cli.waiting import why
from bub_redis.errors import NotFound
from bub_redis.tape import Receipt, TapeEntry, TapeQuery
from bub_redis.tape.receipt import receipt_in
from bub_redis.turns import Turn, TurnClient
from bub_redis.turns.overview import OpenTurn, QueueOverview


async def list_turns(session: str | None, *, last: int, as_json: bool) -> None:
    """Print the turns. Raises NotFound for a session that has neither turns nor a tape, and what `connected` raises."""
    settings = command_settings()
    async with connected(settings) as client:
        overview = QueueOverview(client.queue)
        if session is None:
            print_open(await overview.turns(), as_json=as_json)
            return
        tape = client.turn(session, "any").tape
        waiting = await overview.turns_of(tape)
        ended = [entry async for entry in _ended(client, tape, last)]
        head = await client.store.head(tape)
        if not waiting and not head.last:
            raise NotFound(f"session {session!r} has no turns in namespace {client.queue.namespace!r}")
    if as_json:
        for entry, receipt in reversed(ended):
            print_json(_ended_turn_json(Turn(session, tape, receipt.turn), entry, receipt))
        for turn in waiting:
            print_json(_open_turn_json(turn))
        return
    _print_session(list(reversed(ended)), waiting)
    if head.generation and not ended and last:
        known = seconds_text(settings.turn_ttl_s)
        note(
            "the tape was reset: how turns before that ended is known to `bub-redis turn result` for "
            f"{known} (BUB_TURN_TTL_S)"
        )


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
    return {**_named(turn.turn), **asdict(turn), "turn": turn.turn.id, "blocked": turn.blocked, "why": why(turn)}


def _ended_turn_json(turn: Turn, entry: TapeEntry, receipt: Receipt) -> dict[str, Any]:
    return {**_named(turn), "status": receipt.status, "date": entry.date, "entry": entry.id}


def _named(turn: Turn) -> dict[str, Any]:
    """What a turn is named by in JSON, whether it has ended or not."""
    return {"session": turn.session, "tape": turn.tape, "turn": turn.id}


def _print_session(ended: list[tuple[TapeEntry, Receipt]], waiting: list[OpenTurn]) -> None:
    rows: list[tuple[str, ...]] = [
        (
            receipt.turn,
            receipt.status,
            f"{moment_text(entry.date)} UTC",
            receipt.error or f"entries {receipt.first}-{entry.id}",
        )
        for entry, receipt in ended
    ]
    rows.extend((turn.turn.id, turn.status, ago(turn.enqueued_ms), why(turn)) for turn in waiting)
    if rows:
        Terminal().columns(("TURN", "STATUS", "WHEN", ""), rows)
    else:
        Terminal().print("no turn is open, and none that ended is shown")
