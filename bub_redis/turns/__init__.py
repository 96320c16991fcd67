"""A turn as a job: enqueue, queue, run, follow. The runner tells the whole story."""

from bub_redis.turns.client import TurnClient
from bub_redis.turns.frames import Frame
from bub_redis.turns.record import Turn, TurnResult

__all__ = ["Frame", "Turn", "TurnClient", "TurnResult"]
