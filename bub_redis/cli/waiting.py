"""Why an open turn is where it is, in words."""

import time

from bub_redis.cli.rendering import ago, seconds_text
from bub_redis.turns.overview import OpenTurn

NO_WORKER = "no worker runs yet, so turns wait: start one with `bub-redis worker MODULE:ATTRIBUTE`"


def why(turn: OpenTurn) -> str:
    """What the turn waits for, or who runs it, and what went wrong before."""
    if turn.status == "running":
        return _running(turn)
    if turn.place:
        return f"behind {turn.place} of its session"
    pause_s = 0.0 if turn.due_ms is None else turn.due_ms / 1000 - time.time()
    if turn.blocked:
        return f"blocked: {turn.handed_back}"
    if pause_s > 0:
        return f"tried again in {seconds_text(pause_s)}: {turn.handed_back or 'its worker runs another suspect'}"
    waits = "for a worker to put it on the tape as cancelled" if turn.cancelled else "for a worker"
    return f"{waits}; handed back before: {turn.handed_back}" if turn.handed_back else waits


def _running(turn: OpenTurn) -> str:
    since = "" if turn.started_ms is None else f" since {ago(turn.started_ms)}"
    said = [f"on {turn.worker}{since}"]
    if turn.attempt > 1:
        said.append(f"attempt {turn.attempt}")
    if turn.crashes > 1:
        said.append(f"took {turn.crashes - 1} down before")
    if turn.overdue:
        said.append("its worker is silent")
    if turn.cancelled:
        said.append("being cancelled")
    return ", ".join(said)
