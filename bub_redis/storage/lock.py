"""The session lock and its fence. The lock only keeps others waiting; the fence is what makes a commit safe."""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from bub_redis.errors import Outage, SessionBusy
from bub_redis.storage.client import RedisServer
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.refusal import refused
from bub_redis.storage.script import Script
from bub_redis.tape.store import Grant

_GRANT = Script(__package__, "grant")
_RENEW = Script(__package__, "renew")
_RELEASE = Script(__package__, "release")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


@dataclass(frozen=True)
class Opening:
    """The frame that a grant shows to followers of a turn."""

    type: str
    attempt: int
    data: bytes
    ttl_ms: int


@dataclass(frozen=True)
class Committed:
    """Instead of a grant: the turn is on the tape already."""

    receipt_id: str
    status: str
    steers: int

    @classmethod
    def from_mark(cls, mark: bytes) -> "Committed":
        """What a mark in `turns` says: `<stream id> <status> <steers used>`."""
        receipt_id, status, steers = mark.decode().split(" ")
        return cls(receipt_id, status, int(steers))


class SessionLock:
    """Grants the sessions of one tape server."""

    def __init__(self, server: RedisServer, namespace: str, lease_s: float) -> None:
        self._server = server
        self._namespace = namespace
        self._lease_ms = int(lease_s * 1000)

    async def grant(
        self,
        tape: str,
        holder: str,
        *,
        dispatch: int | None = None,
        secret: str,
        opening: Opening | None = None,
    ) -> Grant | Committed:
        """Take the session at once, or learn that `holder` is committed. Repeating it gives the same grant.

        Raises SessionBusy if a library fork, or an attempt of an equal or higher dispatch number, holds the session;
        TapeBlocked, Outage.
        """
        keys = TapeKeys(self._namespace, tape)
        frame = (opening.type, opening.attempt, opening.data, opening.ttl_ms) if opening else ("", 0, b"", 0)
        with self._server.outages():
            verdict, *rest = await _GRANT.run(
                self._server.commands,
                [keys.lock, keys.fence, keys.turns, keys.state, keys.frames(holder)],
                [holder, "-" if dispatch is None else dispatch, secret, self._lease_ms, *frame],
            )
        match verdict:
            case b"GRANTED":
                return Grant(tape, holder, int(rest[0]), secret, dispatch)
            case b"COMMITTED":
                return Committed.from_mark(rest[0])
            case b"BUSY":
                raise SessionBusy(f"session {tape!r} is held by {rest[0].decode().split(':', 2)[2]!r}; try again later")
            case _:
                raise refused(tape, rest[0].decode())

    async def renew(self, grant: Grant) -> bool:
        """Extend the lock by a lease; whether the session is still ours. Raises Outage, which is not a loss."""
        keys = TapeKeys(self._namespace, grant.tape)
        with self._server.outages():
            return bool(
                await _RENEW.run(
                    self._server.commands,
                    [keys.lock, keys.fence, keys.state],
                    [grant.lock, grant.fence, grant.holder, self._lease_ms],
                )
            )

    async def release(self, grant: Grant, *, still_open: bool = False) -> None:
        """Give the session back if it is ours; `still_open` where another attempt goes on with the turn."""
        keys = TapeKeys(self._namespace, grant.tape)
        with self._server.outages():
            await _RELEASE.run(
                self._server.commands,
                [keys.lock, keys.state],
                [grant.lock, "" if still_open else grant.holder],
            )

    @asynccontextmanager
    async def hold(self, tape: str, holder: str, wait_s: float) -> AsyncIterator[Grant]:
        """Hold the session for a library fork: wait for it, renew it while open, release it at the end.

        A holder that was committed before is granted all the same: its merge gives the receipt of then. Raises
        SessionBusy if the session stays held longer than `wait_s`, Outage.
        """
        grant = await self._granted_within(tape, holder, wait_s)
        keeper = asyncio.create_task(self._keep(grant))
        try:
            yield grant
        finally:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
            # What cannot be released now expires by its TTL.
            with suppress(Outage):
                await self.release(grant)

    async def _granted_within(self, tape: str, holder: str, wait_s: float) -> Grant:
        secret = secrets.token_hex(8)
        deadline = asyncio.get_running_loop().time() + wait_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                granted = await self.grant(tape, holder, secret=secret)
            except SessionBusy:
                if asyncio.get_running_loop().time() + pause_s > deadline:
                    raise
                # Jitter, so that waiting forks do not ask in step.
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            if isinstance(granted, Committed):
                return Grant(tape, holder, 0, secret)
            return granted

    async def _keep(self, grant: Grant) -> None:
        held = True
        while held:
            await asyncio.sleep(self._lease_ms / 3000)
            with suppress(Outage):
                held = await self.renew(grant)
