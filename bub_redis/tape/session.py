"""The session of a tape within one process: who works on it, and who may still commit."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bub_redis.errors import Fenced, SessionBusy
from bub_redis.tape.store import Grant


class LocalSession:
    """The lock and the fence of one session. Other processes know nothing of it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder = ""
        self._tokens = 0
        self._fence = ""

    @asynccontextmanager
    async def locked(self, tape: str, wait_s: float) -> AsyncIterator[None]:
        """Keep others waiting. Raises SessionBusy, naming who holds it, if it stays held longer than `wait_s`."""
        lock = self._lock
        try:
            async with asyncio.timeout(wait_s):
                await lock.acquire()
        except TimeoutError:
            raise SessionBusy(f"session {tape!r} is held by {self._holder!r}; try again later") from None
        try:
            yield
        finally:
            lock.release()

    def seize(self) -> None:
        """Let whoever asks next have the lock at once; whoever holds it now goes on without."""
        self._lock = asyncio.Lock()

    def grant(self, tape: str, holder: str) -> Grant:
        """Grant the session: whoever was granted it before may not commit any more."""
        self._tokens += 1
        self._holder = holder
        grant = Grant(tape, holder, self._tokens, secrets.token_hex(8))
        self._fence = grant.fence
        return grant

    def check(self, grant: Grant) -> None:
        """Raise Fenced unless this is the last grant."""
        if self._fence != grant.fence:
            raise Fenced(f"session {grant.tape!r} was granted to another fork since; nothing was written")
