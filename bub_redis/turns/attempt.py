"""What the queue side says of turns and their attempts: plain values."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bub_redis.turns.record import Request


@dataclass(frozen=True)
class Attempt:
    """One try of a turn by one worker."""

    full_id: str
    number: int
    worker: str

    @classmethod
    def of_job(cls, job_id: str, namespace: str, worker: str) -> "Attempt":
        """The attempt that an arq job id names: `<namespace>/<full id>:<attempt>`. Raises ValueError for another id."""
        full_id, _, number = job_id.removeprefix(f"{namespace}/").rpartition(":")
        return cls(full_id, int(number), worker)


@dataclass(frozen=True)
class Started:
    """An attempt that the queue side has made the running one."""

    attempt: Attempt
    request: Request
    dispatch: int
    """The order of attempts: a higher number takes a session from a lower one."""
    handbacks: int
    """How often attempts of the turn were handed back."""
    suspect: bool
    """Whether one more crash is the last: a worker runs one such turn at a time."""
    last_receipt: tuple[str, str]
    """Stream id and digest of the last receipt that the queue side was shown of the session; empty without one."""
    closing: Literal["", "cancelled", "crashed"]
    """Why this attempt runs nothing and only puts on the tape what the ones before it did; empty for any other."""


class Beat(StrEnum):
    """What the queue side says of an attempt that is renewed."""

    HELD = "HELD"
    CANCEL = "CANCEL"
    LOST = "LOST"


@dataclass(frozen=True)
class Standing:
    """What the queue side knows of a turn now."""

    status: str
    place: int | None
    """How many turns of the session stand before it; None for one that has ended."""
    attempt: int
    worker: str | None
    """Who started it last; None before its first start."""
    receipt: str | None = None
    """The stream id of the receipt that it ended with; None without one."""


@dataclass(frozen=True)
class DeadTurn:
    """A turn that took its worker down too often, kept for a retry by hand."""

    request: Request
    died_ms: int


Cancellation = Literal["cancelled", "cancelling", "completed", "failed", "steered"]
"""What came of a cancel: the turn never started and has ended; it will end soon; or it had ended before, and how."""
