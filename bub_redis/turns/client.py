"""What a web backend holds: enqueue a turn, follow it, and read how it ended."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bub_redis.errors import SessionBusy
from bub_redis.settings import Settings, load_settings
from bub_redis.storage.client import RedisServer
from bub_redis.storage.store import RedisTapeStore
from bub_redis.tape.names import check_turn_id, session_tape_name
from bub_redis.tape.tape import BOOTSTRAP_ANCHOR, Tape, handoff_entries
from bub_redis.turns.attempt import Cancellation, DeadTurn
from bub_redis.turns.follow import Follower
from bub_redis.turns.frames import Frame
from bub_redis.turns.hub import FrameHub
from bub_redis.turns.outcome import read_result
from bub_redis.turns.overview import QueueOverview
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.record import Request, Turn, TurnResult, new_turn_id, retry_id


class TurnClient:
    """Sends turns and watches them, from any process. Use it as `async with TurnClient.from_url(url) as client`.

    It belongs to one event loop. All methods raise Outage when a server does not answer.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError for a URL that is none. Nothing is sent before the client is used."""
        self._workspace = settings.workspace
        self.server = RedisServer(settings.queue_address)
        tape_server = self.server if settings.tape_url is None else RedisServer(settings.tape_address)
        self.queue = TurnQueue(self.server, settings)
        self._hub = FrameHub(tape_server)
        self.store = RedisTapeStore(tape_server, namespace=settings.namespace, lease_s=settings.lease_s)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        tape_url: str | None = None,
        namespace: str | None = None,
        workspace: Path | None = None,
    ) -> "TurnClient":
        """A client for the servers at these URLs; what is not given comes from `BUB_*`. Raises ConfigError."""
        given = {"redis_url": url, "tape_url": tape_url, "namespace": namespace, "workspace": workspace}
        return cls(load_settings(**{key: value for key, value in given.items() if value is not None}))

    async def aclose(self) -> None:
        """Close all connections; may be repeated."""
        await self._hub.aclose()
        await self.store.aclose()
        await self.server.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def turn(self, session: str, turn_id: str) -> Turn:
        """A handle to a turn that was enqueued before, perhaps by another process. Raises InvalidInput."""
        original, _, retry = turn_id.partition("~")
        if not retry.isdecimal():
            original = turn_id
        check_turn_id(original)
        return Turn(session, session_tape_name(session, self._workspace), turn_id)

    def tape(self, session: str) -> Tape:
        """The session's tape, to be read: what its turns committed. Raises InvalidInput."""
        return Tape(session_tape_name(session, self._workspace), self.store)

    async def enqueue(
        self,
        session: str,
        prompt: str,
        *,
        turn_id: str | None = None,
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Turn:
        """Put a turn behind the others of its session. It is durable when this returns.

        May be repeated with the same `turn_id`: the same turn. `options` go with every model call, `state` is what
        tools share, `metadata` is recorded on the tape. Raises InvalidInput for what is empty, too large or not JSON;
        Conflict if the id is taken by a turn with other content; QueueFull.
        """
        turn = self.turn(session, new_turn_id() if turn_id is None else check_turn_id(turn_id))
        await self.queue.enqueue(Request(turn, prompt, model, options or {}, state or {}, metadata or {}))
        return turn

    async def steer(self, turn: Turn, text: str, *, steer_id: str | None = None) -> Turn | None:
        """Send a message into a turn: it enters before the next model call. None if it was taken in.

        A message for a turn that has ended, or is not known, becomes a turn of its own, which is returned; one that
        comes too late for the last model call becomes the next turn of the session, under the id `steer_id`. It is
        never lost and never used twice; may be repeated with the same `steer_id`. Raises what `enqueue` raises.
        """
        own = self.turn(turn.session, new_turn_id() if steer_id is None else check_turn_id(steer_id))
        own = Turn(turn.session, turn.tape, own.id)
        taken = await self.queue.steer(turn, Request(own, text))
        return None if taken else own

    async def cancel(self, turn: Turn) -> Cancellation:
        """Cancel a turn and return what came of it.

        `cancelled`: it never started, nothing of it is on the tape. `cancelling`: it is stopped soon; what it did so
        far is merged, and `result` says how it ended. Anything else: it had ended before, and how. May be repeated.
        A steering message, by its `steer_id`, is always `cancelling`: it ends with its turn, as `steered` if the turn
        had taken it in before. Raises NotFound for an unknown turn.
        """
        return await self.queue.cancel(turn)

    async def reset(self, session: str, *, force: bool = False) -> None:
        """Empty the session's tape and sidecars, and begin it anew with `session/start`; turns that wait go on then.

        With `force` also while a turn is open: it is cancelled first, and what it would still merge is refused. Raises
        InvalidInput, SessionBusy that names the turn, Conflict if the tape changes too fast, TapeBlocked.
        """
        name = session_tape_name(session, self._workspace)
        if force and (head := await self.queue.head(name)):
            await self.queue.cancel(head)
        opening = handoff_entries(BOOTSTRAP_ANCHOR, {"owner": "human"})
        await self.store.reset(name, opening, sidecars=await self.store.sidecars(name), force=force)

    async def delete(self, session: str) -> None:
        """Remove the session's tape and every key with its name, for good. May be repeated if it was cut short.

        The queue side forgets the ids of turns that never started by itself, within `turn_ttl_s`. Raises InvalidInput;
        SessionBusy while a turn of the session waits or is open: cancel it first; Fenced, TapeBlocked.
        """
        name = session_tape_name(session, self._workspace)

        committed: list[str] = []

        async def nothing_waits() -> None:
            if head := await self.queue.head(name):
                raise SessionBusy(f"turn {head.id!r} of session {session!r} has not ended; cancel it, then delete")
            committed.extend(await self.store.committed_ids(name))

        await self.store.delete(name, guard=nothing_waits, forget=lambda: self.queue.forget(name, committed))

    async def dead(self, *, most: int = 100) -> list[DeadTurn]:
        """Turns that took their worker down too often and were ended for it, newest first; kept for seven days."""
        return await QueueOverview(self.queue).dead(most)

    async def retry(self, dead: DeadTurn) -> Turn:
        """Send what a dead turn was asked once more, as a new turn `<turn>~2` whose metadata names the old one.

        May be repeated: the same turn. Raises QueueFull.
        """
        request = dead.request
        turn = replace(request.turn, id=retry_id(request.turn.id))
        metadata = {**request.metadata, "retry_of_turn": request.turn.id}
        await self.queue.enqueue(replace(request, turn=turn, metadata=metadata))
        return turn

    async def follow(self, turn: Turn, *, after: str | None = None) -> AsyncGenerator[Frame, None]:
        """What happens in the turn, live, up to its `finished` frame.

        Resumes behind the frame with id `after`: nothing is repeated, and what cannot be shown any more is a `gap`
        frame. A `restarted` frame voids all drafts before it; what was kept of them comes again behind it. Raises
        Outage, after which it may be followed again; NotFound for an unknown turn; InvalidInput for an `after` that is
        none; Conflict if the turn was committed and its tape's server went back to an older copy without it.
        """
        async with aclosing(Follower(self._hub, self.queue, self.store, turn).frames(after)) as frames:
            async for frame in frames:
                yield frame

    async def result(
        self,
        turn: Turn,
        *,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109 - the name that every caller expects
    ) -> TurnResult:
        """Wait for the end of the turn and return what it ended with; one that has ended is told at once.

        `timeout` is a timedelta, or seconds. Raises TimeoutError if it has not ended in time (it goes on), NotFound for
        an unknown turn, Outage; Conflict as `follow` does.
        """
        committed = await self.store.committed(turn.tape, turn.id)
        if committed is not None:
            return await read_result(self.store, turn, committed)
        try:
            async with asyncio.timeout(timeout.total_seconds() if isinstance(timeout, timedelta) else timeout):
                # The last frame is `finished`: following ends with nothing else.
                frame = [frame async for frame in self.follow(turn)][-1]
        except TimeoutError:
            within = timeout if isinstance(timeout, timedelta) else f"{timeout:g} s"
            raise TimeoutError(f"turn {turn.id!r} has not ended within {within}; it goes on") from None
        committed = await self.store.committed(turn.tape, turn.id)
        if committed is None:
            # It never started: cancelled while it waited, or taken in by another turn.
            return TurnResult(turn.id, frame.data["status"], None, None, None, None)
        return await read_result(self.store, turn, committed)
