"""One attempt of a turn, from start to finish: start → lock → fork → agent → merge → finish.

The one file that tells the whole story, and the only one that decides what happens to a fork. The merge is the one
commit point; before it nothing of the attempt is visible, after it only the receipt on the tape counts.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, TypeVar

import structlog

from bub_redis import faults
from bub_redis.agent import Agent
from bub_redis.errors import BubError, Conflict, Fenced, Outage
from bub_redis.settings import Settings
from bub_redis.storage.lock import Committed
from bub_redis.storage.store import RedisTapeStore
from bub_redis.tape.fork import Fork
from bub_redis.tape.receipt import Status
from bub_redis.tape.store import Grant
from bub_redis.tape.tape import Tape
from bub_redis.turns.frames import FrameWriter, opening_frame
from bub_redis.turns.outcome import finish
from bub_redis.turns.queue import Attempt, Started, TurnQueue

log = structlog.get_logger(__name__)

T = TypeVar("T")

_SHOWN = frozenset({"text", "reasoning", "tool_call", "tool_result", "usage"})
_LONGEST_PAUSE_S = 30.0


class Stop(StrEnum):
    """Why a running attempt is told to stop; noted before its task is cancelled."""

    DRAIN = "drain"
    """The worker stops: the turn is handed back, another one goes on with it."""
    LOST = "lost"
    """Another attempt has the turn or the session: nothing of this one may be kept."""
    LIMIT = "limit"
    """The turn ran as long as turns may: what there is is merged, as failed."""


@dataclass(eq=False)
class RunningTurn:
    """An attempt as its worker's keeper sees it: what to renew, and how to stop it."""

    attempt: Attempt
    grant: Grant | None = None
    """What to renew on the tape side, once the session is granted."""
    reason: Stop | None = None
    _work: asyncio.Task[None] | None = field(default=None, repr=False)

    def stop(self, reason: Stop) -> None:
        """Note the reason and stop the agent's work. The first reason counts; work that has ended stays ended."""
        if self.reason is None:
            self.reason = reason
            if self._work:
                self._work.cancel()

    async def work(self, coroutine: Awaitable[None]) -> BaseException | None:
        """Run the agent's work to its end; how it failed, or None. Stopping the work does not stop the caller."""
        self._work = asyncio.ensure_future(coroutine)
        if self.reason is not None:
            self._work.cancel()
        try:
            await asyncio.wait({self._work})
        except asyncio.CancelledError:
            self._work.cancel()
            await asyncio.wait({self._work})
            raise
        if self._work.cancelled():
            return asyncio.CancelledError()
        return self._work.exception()


class Keeper(Protocol):
    """Who keeps the leases of running attempts."""

    def keep(self, running: RunningTurn) -> AbstractContextManager[None]:
        """Renew the attempt's lease, and its lock once granted, until the block ends."""


class TurnRunner:
    """Runs attempts with one agent. Every way out leaves the turn finished, handed back, or to the reconciler."""

    def __init__(
        self, agent: Agent, queue: TurnQueue, store: RedisTapeStore, settings: Settings, keeper: Keeper
    ) -> None:
        self._agent = agent
        self._queue = queue
        self._store = store
        self._settings = settings
        self._keeper = keeper

    async def run(self, attempt: Attempt) -> None:
        """Run one attempt. Never waits for a lock, so a busy session holds no place on the worker.

        Raises CancelledError if cancelled from outside: nothing of the attempt is kept then.
        """
        started = await self._queue.start(attempt)
        if started is None:
            log.info("turn.stale", attempt=attempt.number, turn=attempt.full_id)
            return
        faults.point("after-start")
        running = RunningTurn(attempt)
        turn = started.request.turn
        with (
            structlog.contextvars.bound_contextvars(
                session=turn.session, turn=turn.id, attempt=attempt.number, worker=attempt.worker
            ),
            self._keeper.keep(running),
        ):
            try:
                await self._run_started(started, running)
            except Fenced:
                log.warning("turn.fenced")
            except BubError as error:
                # An outage, a foreign lock, a tape that is blocked or was reset: not the turn's fault.
                await self._hand_back(started, str(error), pause_s=min(2.0**started.handbacks, _LONGEST_PAUSE_S))

    async def _run_started(self, started: Started, running: RunningTurn) -> None:
        turn, attempt = started.request.turn, started.attempt
        granted = await self._store.lock.grant(
            turn.tape,
            turn.id,
            dispatch=started.dispatch,
            secret=secrets.token_hex(8),
            opening=opening_frame(attempt.number, self._settings.frames_ttl_s),
        )
        if isinstance(granted, Committed):
            await self._finish(started, granted)
            return
        running.grant = granted
        faults.point("after-lock")
        # Between start and lock another attempt may have been dispatched; it would wait for ours in vain.
        if not all(await self._queue.beat([attempt], attempt.worker)):
            await self._store.lock.release(granted, still_open=True)
            return
        tape = replace(self._agent.tape(turn.tape, state=_state(started)), store=self._store)
        await tape.ensure_bootstrap_anchor()
        fork = await Fork.open(self._store, granted)
        faults.point("after-fork")
        frames = FrameWriter(
            self._store.server, self._store.namespace, granted, attempt.number, self._settings.frames_ttl_s
        )
        try:
            failure = await running.work(self._work(started, replace(tape, store=fork), frames))
        finally:
            await frames.close()
        await self._settle(started, running, granted, fork, frames, failure)

    async def _work(self, started: Started, tape: Tape, frames: FrameWriter) -> None:
        """Let the agent answer on the fork, and show followers what it does."""
        request = started.request
        stream = await self._agent.run_on(
            tape,
            request.prompt,
            model=request.model,
            options=request.options,
            metadata=request.metadata,
            # The same for every attempt, so that a tool's idempotency keys are too.
            run_id=request.turn.id,
        )
        async with aclosing(stream):
            async for event in stream:
                if event.kind in _SHOWN:
                    frames.put(event.kind, event.data)
                faults.point(f"during-{event.kind}")

    async def _settle(
        self,
        started: Started,
        running: RunningTurn,
        grant: Grant,
        fork: Fork,
        frames: FrameWriter,
        failure: BaseException | None,
    ) -> None:
        """Decide what becomes of the fork, by why the work ended."""
        status: Status = "completed"
        error: str | None = None
        match running.reason, failure:
            case Stop.LOST, _:
                log.warning("turn.lost")
                await self._store.lock.release(grant, still_open=True)
                return
            case Stop.DRAIN, asyncio.CancelledError():
                await self._store.lock.release(grant, still_open=True)
                await self._hand_back(started, "the worker was told to stop", pause_s=0.0)
                return
            case Stop.LIMIT, asyncio.CancelledError():
                status, error = (
                    "failed",
                    f"the turn ran for {self._settings.turn_limit_s:g} s, the longest allowed",
                )
            case _, Outage() | Conflict():
                await self._store.lock.release(grant, still_open=True)
                raise failure
            case _, None:
                pass
            case _, BubError():
                status, error = "failed", str(failure)
            case _:
                # What user code raised: the job edge, where it becomes the turn's own end.
                log.error("turn.failed", exc_info=failure)
                status, error = "failed", f"{type(failure).__name__}: {failure}"
        faults.point("before-merge")
        commit = await fork.prepare(status, error=error, attempt=started.attempt.number)
        receipt = await self._store.commit(commit, frames.closing_frame(commit.receipt))
        faults.point("after-merge")
        await self._finish(started, Committed(receipt.id, receipt.status, receipt.steers))

    async def _finish(self, started: Started, committed: Committed) -> None:
        turn = started.request.turn
        await self._until_answered(lambda: finish(self._queue, self._store, turn, committed))
        faults.point("after-finish")
        log.info("turn.finished", status=committed.status, receipt=committed.receipt_id)

    async def _hand_back(self, started: Started, reason: str, pause_s: float) -> None:
        log.warning("turn.handed_back", reason=reason, pause_s=pause_s)
        await self._until_answered(lambda: self._queue.hand_back(started.attempt, pause_s=pause_s, reason=reason))

    async def _until_answered(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat through an outage of any length: giving up would charge the turn with a crash that was none."""
        pause_s = 0.5
        while True:
            try:
                return await operation()
            except Outage as outage:
                log.warning("turn.waits_for_server", reason=str(outage), pause_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _state(started: Started) -> dict[str, object]:
    return {"session_id": started.request.turn.session, **started.request.state}
