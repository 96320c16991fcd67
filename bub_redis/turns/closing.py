"""How a turn ends that the agent did not bring to its own end: closing attempts, and failures before or beside it."""

from bub_redis.tape.entry import TapeEntry
from bub_redis.turns.attempt import Started
from bub_redis.turns.durable import TurnFork
from bub_redis.turns.running import End


def closing_end(started: Started, max_crashes: int) -> End:
    """How the turn of a closing attempt ends: it was cancelled, or took its worker down too often. It runs nothing."""
    if started.closing == "cancelled":
        return End("cancelled")
    return End(
        "failed", f"the turn took its worker down {max_crashes} times; see `bub-redis queue dead`", kind="crashed"
    )


async def complete_block(fork: TurnFork, started: Started, end: End) -> None:
    """Have the block of a failed turn tell what was asked and why it failed, where the agent did not (case 128)."""
    if end.status != "failed" or end.error is None:
        return
    meta = {"run_id": started.request.turn.id}
    tape = started.request.turn.tape
    kinds = {(entry.kind, entry.payload.get("role")) for entry in fork.entries}
    if ("message", "user") not in kinds:
        await fork.append(tape, TapeEntry.message({"role": "user", "content": started.request.prompt}, **meta))
    if ("error", None) not in kinds:
        await fork.append(tape, TapeEntry.error(end.kind, end.error, None, **meta))
