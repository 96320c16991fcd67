"""What a web backend holds: enqueue a turn, follow it, and read how it ended."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bub_redis.errors import NotFound
from bub_redis.settings import Settings, load_settings
from bub_redis.storage.client import RedisServer
from bub_redis.storage.store import RedisTapeStore
from bub_redis.tape.names import check_turn_id, session_tape_name
from bub_redis.turns.follow import Follower
from bub_redis.turns.frames import Frame
from bub_redis.turns.outcome import read_result
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.record import Request, Turn, TurnResult, new_turn_id


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
        return Turn(session, session_tape_name(session, self._workspace), check_turn_id(turn_id))

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
        Conflict if the id is taken by a turn with other content.
        """
        turn = self.turn(session, new_turn_id() if turn_id is None else turn_id)
        await self.queue.enqueue(Request(turn, prompt, model, options or {}, state or {}, metadata or {}))
        return turn

    async def follow(self, turn: Turn, *, after: str | None = None) -> AsyncGenerator[Frame, None]:
        """What happens in the turn, live, up to its `finished` frame.

        Resumes behind the frame with id `after`: nothing is repeated, and what cannot be shown any more is a `gap`
        frame. A `restarted` frame voids all drafts before it. Raises NotFound for an unknown turn.
        """
        async for frame in Follower(self.queue, self.store, turn).frames(after):
            yield frame

    async def result(
        self,
        turn: Turn,
        *,
        timeout: timedelta | None = None,  # noqa: ASYNC109 - the name that every caller expects
    ) -> TurnResult:
        """Wait for the end of the turn and return what it ended with.

        Raises TimeoutError if it has not ended in time (it goes on), NotFound for an unknown turn.
        """
        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                async for frame in self.follow(turn):
                    if frame.type == "finished":
                        break
        except TimeoutError:
            raise TimeoutError(f"turn {turn.id!r} has not ended within {timeout}; it goes on") from None
        committed = await self.store.committed(turn.tape, turn.id)
        if committed is None:
            raise NotFound(f"turn {turn.id!r} of session {turn.session!r} is not on the tape any more")
        return await read_result(self.store, turn, committed)
