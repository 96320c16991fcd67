"""One attempt of a turn, from start to finish: start → lock → fork → agent → merge → finish.

The one file that tells the whole story, and the only one that decides what happens to a fork. The merge is the one
commit point; before it nothing of the attempt is visible, after it only the receipt on the tape counts.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TypeVar

import structlog

from bub_redis import faults
from bub_redis.agent import Agent
from bub_redis.agent.resume import Resume
from bub_redis.errors import BubError, ConfigError, Fenced, Outage, ServerUnfit
from bub_redis.settings import Settings
from bub_redis.storage.journal import Journal
from bub_redis.storage.lock import Committed
from bub_redis.storage.store import RedisTapeStore
from bub_redis.tape.sidecar import sidecar_tape_name
from bub_redis.tape.store import Grant, Head
from bub_redis.tape.tape import Tape
from bub_redis.turns.attempt import Attempt, Beat, Started
from bub_redis.turns.closing import closing_end, complete_block
from bub_redis.turns.durable import TurnFork
from bub_redis.turns.frames import FrameWriter, first_frame
from bub_redis.turns.outcome import finish, read_result, read_steers, told_result
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.record import TurnResult
from bub_redis.turns.resuming import Journaling, Progress, TurnInbox
from bub_redis.turns.running import End, Keeper, RunningTurn, Stop

log = structlog.get_logger(__name__)

T = TypeVar("T")

SHOWN = frozenset({"step", "text", "reasoning", "tool_call", "tool_result", "usage", "handoff", "steered"})
_LONGEST_PAUSE_S = 30.0
_UNREADABLE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""What comes of a journal whose records have our form and nobody's sense."""


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
        self._starting = asyncio.Lock()
        self._suspects = 0

    async def run(self, attempt: Attempt) -> None:
        """Run one attempt. Never waits for a lock, so a busy session holds no place on the worker.

        Raises CancelledError if cancelled from outside: nothing of the attempt is kept then.
        """
        asked_at = time.monotonic()
        running = RunningTurn(attempt)
        # Kept from before the start: its answer may come late, and the lease counts from the first time it was asked.
        with self._keeper.keep(running):
            started = await self._until_answered(lambda: self._start(attempt))
            if started is None:
                log.info("turn.not_ours", attempt=attempt.number, turn=attempt.full_id)
                return
            running.started = True
            faults.point("after-start")
            turn = started.request.turn
            with structlog.contextvars.bound_contextvars(
                session=turn.session, turn=turn.id, attempt=attempt.number, worker=attempt.worker
            ):
                try:
                    await self._run_started(started, running, asked_at)
                except Fenced as lost:
                    # Whoever was granted the session may be done with it; if not, the next attempt has its pause.
                    await self._hand_back(started, running, str(lost), pause_s=0.0, kind=lost.kind)
                except BubError as error:
                    # An outage, a foreign lock, a tape that is blocked or was reset: not the turn's fault.
                    pause_s = min(2.0**started.handbacks, _LONGEST_PAUSE_S)
                    await self._hand_back(started, running, str(error), pause_s=pause_s, kind=error.kind)
                finally:
                    self._suspects -= started.suspect

    async def _start(self, attempt: Attempt) -> Started | None:
        """Start the attempt; one suspect at a time, so that a poison turn takes no other one down for the last time."""
        async with self._starting:
            started = await self._queue.start(attempt, take_suspects=not self._suspects)
            self._suspects += started is not None and started.suspect
        return started

    async def _run_started(self, started: Started, running: RunningTurn, asked_at: float) -> None:
        turn, attempt = started.request.turn, started.attempt
        granted = await self._store.lock.grant(
            turn.tape,
            turn.id,
            dispatch=started.dispatch,
            secret=secrets.token_hex(8),
            first_frame=first_frame(attempt.number, self._settings.frames_ttl_s),
            reads_context=True,
        )
        if isinstance(granted, Committed):
            await self._store.confirm(turn.tape, turn.id, granted)
            await self._finish_committed(started, granted)
            return
        running.grant = granted
        faults.point("after-lock")
        # Between start and lock another attempt may have been dispatched, but not within a beat: the lease is longer.
        if time.monotonic() - asked_at > self._settings.beat_s:
            (beat,) = await self._queue.beat([attempt], attempt.worker)
            if beat is Beat.LOST:
                await self._release(running)
                return
        await self._run_granted(started, running, granted)

    async def _run_granted(self, started: Started, running: RunningTurn, grant: Grant) -> None:
        tape = replace(self._agent.tape(grant.tape, state=_state(started)), store=self._store)
        head = grant.head
        if head is None or not head.anchor:
            await tape.ensure_bootstrap_anchor()
            head = None
        fork, found = await self._replayed(started, tape, grant, head)
        progress = found or Progress()
        fork.stopped = running.is_stopped
        resume = progress.resume if fork.entries else None
        if resume is None:
            await fork.tell_lost_tail(*started.last_receipt)
        faults.point("after-fork")
        frames = FrameWriter(
            self._store.server, self._store.namespace, grant, started.attempt.number, self._settings.frames_ttl_s
        )
        inbox = TurnInbox(self._queue, started.request.turn, fork, progress.steers)
        ended: End | Stop
        try:
            if started.closing:
                ended = closing_end(started, self._settings.max_crashes, has_journal=found is not None)
            else:
                work = self._work(started, replace(tape, store=fork), fork, frames, inbox, resume)
                failure = await running.work(work)
                ended = self._end(running.reason, failure)
        finally:
            await frames.close()
        match ended:
            case End():
                await self._merge(started, fork, frames, ended, inbox.used)
            case Stop.LOST:
                # Lost to another attempt, nothing is handed back; but it may be the session alone, to a library fork.
                await self._hand_back(started, running, "the session was lost while the turn ran", pause_s=0.0)
            case Stop.DRAIN:
                await self._hand_back(started, running, "the worker was told to stop", pause_s=0.0)

    async def _replayed(
        self, started: Started, tape: Tape, grant: Grant, head: Head | None
    ) -> tuple[TurnFork, Progress | None]:
        """A fork that holds what earlier attempts did, and what they noted.

        A bare one and None if a closing attempt cannot read the journal: the turn must end all the same.
        """
        sidecars = [sidecar_tape_name(tape.name, sidecar.name) for sidecar in tape.sidecars]

        async def bare() -> TurnFork:
            return await TurnFork.open(self._store, grant, head=head, sidecars=sidecars)

        fork = await bare()
        try:
            return fork, Progress.of(await fork.replay(Journal(self._store.server, self._store.namespace, grant)))
        except ConfigError:
            # Of the server, and no word about the journal.
            raise
        except _UNREADABLE as error:
            if not started.closing:
                # Charged, so that in the end a closing attempt comes.
                raise RuntimeError("the journal of the turn cannot be read") from error
            log.exception("turn.journal_lost")
            return await bare(), None

    async def _work(
        self,
        started: Started,
        tape: Tape,
        fork: TurnFork,
        frames: FrameWriter,
        inbox: TurnInbox,
        resume: Resume | None,
    ) -> None:
        """Let the agent answer on the fork, from where the attempt before got to, and show followers what it does."""
        request = started.request
        stream = await self._agent.run_on(
            tape,
            request.prompt,
            model=request.model,
            options=request.options,
            metadata=request.metadata,
            # The same for every attempt, so that a tool's idempotency keys are too.
            run_id=request.turn.id,
            inbox=inbox,
            events=Journaling(fork, tape.context.state).bus(),
            resume=resume,
        )
        async with aclosing(stream):
            async for event in stream:
                if event.kind in SHOWN:
                    frames.put(event.kind, event.data)
                faults.point(f"during-{event.kind}")

    def _end(self, reason: Stop | None, failure: BaseException | None) -> End | Stop:
        """Decide what becomes of the fork, by why the work ended: the end to merge, or the reason to drop it.

        Raises an outage, whoever met it. A conflict may be user code's own, so it is an end like any other failure: if
        the fence was lost or the tape reset, the merge is refused.
        """
        match reason, failure:
            case Stop.LOST, _:
                return Stop.LOST
            case Stop.DRAIN, asyncio.CancelledError():
                return Stop.DRAIN
            case Stop.CANCEL, asyncio.CancelledError():
                return End("cancelled")
            case Stop.LIMIT, asyncio.CancelledError():
                return End(
                    "failed", f"the turn ran for {self._settings.turn_limit_s:g} s, the longest allowed", kind="limit"
                )
            case _, Outage():
                raise failure
            case _, None:
                return End("completed")
            case _, BubError():
                return End("failed", str(failure), kind=failure.kind)
            case _:
                # What user code raised: the job edge, where it becomes the turn's own end.
                log.error("turn.failed", exc_info=failure)
                return End("failed", f"{type(failure).__name__}: {failure}", kind="failure")

    async def _merge(
        self, started: Started, fork: TurnFork, frames: FrameWriter, end: End, steers: Collection[str]
    ) -> None:
        await complete_block(fork, started, end)
        faults.point("before-merge")
        commit = await fork.prepare(end.status, error=end.error, attempt=started.attempt.number)
        commit = replace(commit, receipt=replace(commit.receipt, steers=len(steers)))
        receipt = await self._store.commit(commit, frames.last_frame(commit.receipt))
        faults.point("after-merge")
        result = told_result(started.request.turn, commit, receipt)
        committed = Committed(receipt.id, receipt.status, receipt.steers)
        if result is None:
            await self._finish_committed(started, committed)
        else:
            await self._finish(started, committed, result, steers)

    async def _finish_committed(self, started: Started, committed: Committed) -> None:
        """End a turn that an earlier attempt committed."""
        turn = started.request.turn
        result = await self._until_answered(lambda: read_result(self._store, turn, committed))
        steers = await self._until_answered(lambda: read_steers(self._store, self._queue, turn, committed))
        await self._finish(started, committed, result, steers)

    async def _finish(
        self, started: Started, committed: Committed, result: TurnResult, steers: Collection[str]
    ) -> None:
        turn = started.request.turn
        await self._until_answered(lambda: finish(self._queue, turn, committed, result, steers))
        faults.point("after-finish")
        log.info("turn.finished", status=committed.status, receipt=committed.receipt_id)

    async def _hand_back(
        self, started: Started, running: RunningTurn, reason: str, *, pause_s: float, kind: str = ""
    ) -> None:
        """Give the session back, then the turn, uncharged; only the session where another attempt has the turn."""
        await self._release(running)
        handed_back = await self._until_answered(
            lambda: self._queue.hand_back(started.attempt, pause_s=pause_s, reason=reason, kind=kind)
        )
        log.warning("turn.handed_back" if handed_back else "turn.lost", reason=reason, pause_s=pause_s)

    async def _release(self, running: RunningTurn) -> None:
        # Forgotten first: the keeper would take the session again at its next beat.
        grant, running.grant = running.grant, None
        if grant is not None:
            # What cannot be released now gives way to the next attempt, whose dispatch number is higher.
            with suppress(Outage):
                await self._store.lock.release(grant, still_open=True)

    async def _until_answered(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat through an outage of any length, or while a user or right is missing.

        Giving up would charge the turn with a crash that was none.
        """
        pause_s = 0.5
        while True:
            try:
                return await operation()
            except (Outage, ConfigError, ServerUnfit) as refusal:
                log.warning("turn.waits_for_server", reason=str(refusal), pause_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _state(started: Started) -> dict[str, object]:
    return {"session_id": started.request.turn.session, **started.request.state}
