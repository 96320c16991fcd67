"""The session lock and its fence. The lock only keeps others waiting; the fence is what makes a commit safe."""

import asyncio
import random
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import NamedTuple, TypeVar

from bub_redis.errors import BubError, Outage, SessionBusy, TapeBlocked
from bub_redis.storage.client import RedisServer
from bub_redis.storage.connection import Argument
from bub_redis.storage.contexts import Contexts, context_commands, with_context
from bub_redis.storage.heads import HEAD_FIELDS, head_of
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.refusal import busy, refused
from bub_redis.storage.script import Script
from bub_redis.tape.shielded import to_its_end
from bub_redis.tape.store import Grant, Head
from bub_redis.tape.stream_id import STREAM_ID
from bub_redis.tasks import ended

_GRANT = Script(__package__, "grant")
_RENEW = Script(__package__, "renew")
_RELEASE = Script(__package__, "release")

_MARK = re.compile(rf"({STREAM_ID.pattern}) (completed|failed|cancelled) (\d{{1,16}})".encode())
_Taken = TypeVar("_Taken")
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_LAST_WORD_S = 2.0
"""How long a server that hangs keeps somebody who wants to leave a session."""


class FirstFrame(NamedTuple):
    """The frame that a grant shows to followers of a turn, as its script takes it; none with an empty type."""

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
        """What a mark in `turns` says: `<stream id> <status> <steers used>`. Raises TapeBlocked if it is none."""
        found = _MARK.fullmatch(mark)
        if found is None:
            raise TapeBlocked("the mark of a turn cannot be read; see `bub-redis tape repair`")
        receipt_id, status, steers = (part.decode() for part in found.groups())
        return cls(receipt_id, status, int(steers))

    @property
    def mark(self) -> str:
        """The mark that says this."""
        return f"{self.receipt_id} {self.status} {self.steers}"


class SessionLock:
    """Grants the sessions of one tape server."""

    def __init__(self, server: RedisServer, namespace: str, lease_s: float, contexts: Contexts | None = None) -> None:
        self._server = server
        self._namespace = namespace
        self.lease_ms = int(lease_s * 1000)
        """How long a session is held without being renewed."""
        self._contexts = contexts or Contexts()

    async def grant(
        self,
        tape: str,
        holder: str,
        *,
        dispatch: int | None = None,
        secret: str,
        first_frame: FirstFrame | None = None,
        between_turns: bool = False,
        reads_context: bool = False,
    ) -> Grant | Committed:
        """Take the session at once, or learn that `holder` is committed. Repeating it gives the same grant.

        With `reads_context` the grant's head brings the tape's context if it is small and was read in this process
        before, in the same round trip. Raises SessionBusy if anybody but an earlier attempt of the same turn, by
        dispatch number, holds the session, and with `between_turns` also if a turn is open that nobody works on now;
        TapeBlocked, Outage.
        """
        keys = TapeKeys(self._namespace, tape)
        frame = first_frame or FirstFrame("", 0, b"", 0)
        anchor = self._contexts.anchor_of(tape) if reads_context else ""
        with self._server.outages():
            (verdict, *rest), *read = await _GRANT.run_before(
                self._server,
                [
                    *(keys.lock, keys.fence, keys.turns, keys.state, keys.frames(holder), keys.journal(holder)),
                    *keys.written,
                ],
                [
                    holder,
                    "-" if dispatch is None else dispatch,
                    secret,
                    self.lease_ms,
                    *frame,
                    "1" if between_turns else "",
                    *keys.fields(*HEAD_FIELDS),
                ],
                context_commands(keys, anchor),
            )
        match verdict:
            case b"GRANTED":
                token, values, has_journal = rest
                grant = Grant(tape, holder, int(token), secret, dispatch, has_journal=bool(has_journal))
                head = await self._head_of(grant, values)
                return replace(grant, head=with_context(head, anchor, *read) if read else head)
            case b"COMMITTED":
                return Committed.from_mark(rest[0])
            case b"BUSY":
                raise busy(tape, rest[0])
            case _:
                raise refused(tape, rest[0].decode())

    async def _head_of(self, grant: Grant, values: Sequence[bytes | None]) -> Head:
        try:
            return head_of(values)
        except TapeBlocked:
            # Whoever repairs the tape needs the session.
            with suppress(Outage):
                await self.release(grant, still_open=grant.dispatch is not None)
            raise

    async def renew(self, grant: Grant) -> bool:
        """Extend the lock by a lease; whether the session is still ours. Raises Outage, which is not a loss."""
        (ours,) = await self.renew_all([grant])
        return ours

    async def renew_all(self, grants: Sequence[Grant]) -> list[bool]:
        """The same for any number of grants, in one round trip."""
        calls: list[tuple[list[str], list[Argument]]] = []
        for grant in grants:
            keys = TapeKeys(self._namespace, grant.tape)
            calls.append(([keys.lock, keys.fence, keys.state], [grant.lock, grant.fence, grant.holder, self.lease_ms]))
        with self._server.outages():
            return [bool(ours) for ours in await _RENEW.run_each(self._server, calls)]

    async def release(self, grant: Grant, *, still_open: bool = False) -> None:
        """Give the session back if it is ours; `still_open` where another attempt goes on with the turn."""
        keys = TapeKeys(self._namespace, grant.tape)
        with self._server.outages():
            await _RELEASE.run(
                self._server,
                [keys.lock, keys.state],
                [grant.lock, "" if still_open else grant.holder],
            )

    @asynccontextmanager
    async def hold(
        self, tape: str, holder: str, wait_s: float, *, between_turns: bool = False, reads_context: bool = False
    ) -> AsyncIterator[Grant]:
        """Hold the session for a library fork: wait for it, renew it while open, release it at the end.

        A holder that was committed before is granted all the same: its merge gives the receipt of then. With
        `between_turns` no turn may be open either; for `reads_context` see `grant`. Raises SessionBusy if the session
        stays held longer than `wait_s`, Outage.
        """
        # Enough to be known by: the token is not in the lock.
        asked = Grant(tape, holder, 0, secrets.token_hex(8))
        # Who finds the session taken asks again and again.
        reads = chain([reads_context], repeat(False))

        def take() -> Awaitable[Grant | Committed]:
            granting = self.grant(
                tape, holder, secret=asked.secret, between_turns=between_turns, reads_context=next(reads)
            )
            # Left half-way, it might be granted behind our back, and behind the release.
            return to_its_end(granting, patience_s=_LAST_WORD_S)

        try:
            granted = await until_free(take, wait_s)
        except asyncio.CancelledError:
            await to_its_end(self._release_at_last(asked))
            raise
        try:
            grant = asked if isinstance(granted, Committed) else granted
            async with kept(partial(self.renew, grant), self.lease_ms / 1000):
                yield grant
        finally:
            await to_its_end(self._release_at_last(asked))

    async def _release_at_last(self, grant: Grant) -> None:
        # What cannot be released now expires by its TTL.
        with suppress(Outage, TimeoutError):
            async with asyncio.timeout(_LAST_WORD_S):
                await self.release(grant)


async def until_free(take: Callable[[], Awaitable[_Taken]], wait_s: float) -> _Taken:
    """Try to take a session until it is free. Raises SessionBusy if it stays held longer than `wait_s`."""
    deadline = asyncio.get_running_loop().time() + wait_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await take()
        except SessionBusy:
            if asyncio.get_running_loop().time() + pause_s > deadline:
                raise
        # Jitter, so that waiting forks do not ask in step.
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


@asynccontextmanager
async def kept(renew: Callable[[], Awaitable[bool]], lease_s: float) -> AsyncIterator[None]:
    """Renew a session while the block runs, until `renew` says that it is not ours any more; an outage is no loss."""

    async def keep() -> None:
        held = True
        while held:
            await asyncio.sleep(lease_s / 3)
            # Whatever it is, who holds the session goes on: the merge says whether it is still theirs.
            with suppress(BubError):
                held = await renew()

    keeper = asyncio.create_task(keep())
    try:
        yield
    finally:
        await ended(keeper)
