"""An attempt while it runs: what its worker's keeper renews, and how it is told to stop."""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from bub_redis.tape.receipt import Status
from bub_redis.tape.store import Grant
from bub_redis.turns.attempt import Attempt


class Stop(StrEnum):
    """Why a running attempt is told to stop; noted before its task is cancelled."""

    DRAIN = "drain"
    """The worker stops: the turn is handed back, another one goes on with it."""
    LOST = "lost"
    """Another attempt has the turn or the session: nothing of this one may be kept."""
    CANCEL = "cancel"
    """A user cancelled the turn: what there is is merged, as cancelled."""
    LIMIT = "limit"
    """The turn ran as long as turns may: what there is is merged, as failed."""


@dataclass(frozen=True)
class End:
    """How a turn ends, as its receipt will say."""

    status: Status
    error: str | None = None
    kind: str = ""
    """The kind of the error."""


@dataclass(eq=False)
class RunningTurn:
    """An attempt as its worker's keeper sees it."""

    attempt: Attempt
    grant: Grant | None = None
    """What to renew on the tape side, once the session is granted."""
    started: bool = False
    """Whether the queue side has made it the running one."""
    working_since: float | None = None
    """Since when, by the monotonic clock, the agent works on it; None before and after."""
    reason: Stop | None = None
    _work: asyncio.Task[None] | None = field(default=None, repr=False)

    def stop(self, reason: Stop) -> None:
        """Note the reason and stop the agent's work. The first reason counts; work that has ended stays ended."""
        if self.reason is None:
            self.reason = reason
            if self._work:
                self._work.cancel()

    def is_stopped(self) -> bool:
        """Whether the work was told to stop."""
        return self.reason is not None

    async def work(self, coroutine: Coroutine[Any, Any, None]) -> BaseException | None:
        """Run the agent's work to its end; how it failed, or None. Stopping the work does not stop the caller."""
        self.working_since = time.monotonic()
        self._work = asyncio.create_task(coroutine)
        if self.reason is not None:
            self._work.cancel()
        try:
            await asyncio.wait({self._work})
        except asyncio.CancelledError:
            # From outside, without a reason: nothing of the attempt is kept.
            self.stop(Stop.LOST)
            self._work.cancel()
            await asyncio.wait({self._work})
            raise
        finally:
            self.working_since = None
        if self._work.cancelled():
            return asyncio.CancelledError()
        return self._work.exception()


class Keeper(Protocol):
    """Who keeps the leases of running attempts."""

    def keep(self, running: RunningTurn) -> AbstractContextManager[None]:
        """Renew the attempt's lease, and its lock once granted, until the block ends."""
