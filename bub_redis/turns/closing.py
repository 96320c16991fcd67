"""How a turn ends that the agent did not bring to its own end: closing attempts, and failures before or beside it."""

from bub_redis.tape.entry import TapeEntry
from bub_redis.turns.attempt import Started
from bub_redis.turns.durable import TurnFork
from bub_redis.turns.running import End


def closing_end(started: Started, max_crashes: int, *, has_journal: bool) -> End:
    """How the turn of a closing attempt ends: it was cancelled, or took its worker down too often. It runs nothing.

    Without a journal that can be read, the end says so: what the turn did is not on the tape then.
    """
    crashed = f"the turn took its worker down {max_crashes} times; see `bub-redis queue dead`"
    unread = "what it did is lost: its journal cannot be read"
    match started.closing, has_journal:
        case "cancelled", True:
            return End("cancelled")
        case "cancelled", False:
            return End("cancelled", unread, kind="journal")
        case _, True:
            return End("failed", crashed, kind="crashed")
        case _:
            return End("failed", f"{crashed}; {unread}", kind="crashed")


async def complete_block(fork: TurnFork, started: Started, end: End) -> None:
    """Have the block of a turn that no agent brought to its end tell what was asked (case 128).

    And the error, if there is one; only what the agent did not record itself.
    """
    if end.status == "completed":
        return
    meta = {"run_id": started.request.turn.id}
    tape = started.request.turn.tape
    kinds = {(entry.kind, entry.payload.get("role")) for entry in fork.entries}
    if ("message", "user") not in kinds:
        await fork.append(tape, TapeEntry.message({"role": "user", "content": started.request.prompt}, **meta))
    if end.error is not None and ("error", None) not in kinds:
        await fork.append(tape, TapeEntry.error(end.kind, end.error, None, **meta))
