"""Reset and delete: the only two ways in which entries leave a tape, both under the session's lock and fence."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bub_redis.errors import Conflict
from bub_redis.storage.client import RedisServer
from bub_redis.storage.commit import tape_args, tape_keys
from bub_redis.storage.connection import Argument
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.lock import SessionLock
from bub_redis.storage.reader import Reader
from bub_redis.storage.refusal import is_unfit, refused
from bub_redis.storage.scanning import fields_of, keys_like
from bub_redis.storage.script import Script
from bub_redis.tape.block import Block
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.names import SIDECAR_MARKER, owner_tape
from bub_redis.tape.sidecar import reset_events
from bub_redis.tape.store import Delta, Grant, Head, reopened

_RESET = Script(__package__, "reset")
_DELETE = Script(__package__, "delete")
_FORCED_TRIES = 10

Hook = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class _Reset:
    """What is asked for: one reset, however often it is sent."""

    id: str
    tape: str
    opening: Sequence[TapeEntry]
    seen: Head | None
    sidecars: Sequence[str]


class Eraser:
    """Resets and deletes tapes of one server."""

    def __init__(self, server: RedisServer, namespace: str, lock: SessionLock, reader: Reader) -> None:
        self._server = server
        self._namespace = namespace
        self._lock = lock
        self._reader = reader

    async def reset(
        self,
        tape: str,
        opening: Sequence[TapeEntry],
        *,
        seen: Head | None,
        sidecars: Sequence[str],
        force: bool,
        wait_s: float,
    ) -> None:
        """Reset the tape and its sidecars in one step; see `CommitStore.reset`."""
        reset = _Reset(secrets.token_hex(8), tape, opening, seen, sidecars)
        if not force:
            async with self._lock.hold(tape, f"reset-{reset.id}", wait_s, between_turns=True) as grant:
                if not await self._reset(reset, grant.fence):
                    raise Conflict(f"tape {tape!r} got another receipt meanwhile; nothing was written")
            return
        # Without the lock a merge may come between the look at the tape and its reset; then it is looked at again.
        for _ in range(_FORCED_TRIES):
            if await self._reset(reset, ""):
                return
        raise Conflict(f"tape {tape!r} changes faster than it can be reset; nothing was written")

    async def _reset(self, reset: _Reset, fence: str) -> bool:
        """Reset under a grant's fence, or by force without one, unless another receipt came between; whether it did."""
        unfit: dict[str, str] = {}
        while True:
            fit = [name for name in reset.sidecars if name not in unfit]
            verdict, *rest = await self._send(reset, fence, fit, unfit)
            codes = [value.decode() for value in rest]
            if verdict in {b"OK", b"MOVED"}:
                return bool(verdict == b"OK")
            name = f"{owner_tape(reset.tape)}{SIDECAR_MARKER}{codes[0]}"
            if verdict != b"UNFIT" or not is_unfit(codes[1]) or name not in fit:
                raise refused(reset.tape, codes[-1])
            unfit[name] = str(refused(name, codes[1]))

    async def _send(self, reset: _Reset, fence: str, sidecars: Sequence[str], unfit: Mapping[str, str]) -> list[bytes]:
        head = await self._reader.head(reset.tape)
        seen = reset.seen
        if seen is not None and (seen.generation, seen.digest) != (head.generation, head.digest):
            # Of what is kept, nothing may be a receipt: its numbers would be those of the old generation.
            raise Conflict(f"tape {reset.tape!r} was reset, or a turn was merged, meanwhile; nothing was written")
        # A reset under the lock holds the session itself, so no turn is open beside it.
        opened = "" if fence else await self._opened(reset.tape)
        owner = head if owner_tape(reset.tape) == reset.tape else await self._reader.head(owner_tape(reset.tape))
        block = Block.of([*reset.opening, *reopened(head), *reset_events(reset.sidecars, unfit)])
        args: list[Argument] = [fence, reset.id, owner.digest, opened]
        args += self._emptied(Delta(reset.tape, head, block, len(block)), seen)
        for name in sidecars:
            args += self._emptied(Delta(name, await self._reader.head(name), Block(), 0), None)
        keys = TapeKeys(self._namespace, reset.tape)
        written = tape_keys(self._namespace, [reset.tape, *sidecars])
        with self._server.outages():
            reply: list[bytes] = await _RESET.run_in_transaction(
                self._server, [keys.state, keys.fence, keys.lock, keys.journal(opened), *written], args
            )
        return reply

    def _emptied(self, delta: Delta, seen: Head | None) -> list[Argument]:
        """One tape of a reset: up to `seen`, or all there is when the script runs."""
        name, generation, opening, _, *block = tape_args(self._namespace, delta)
        return [name, generation, opening, "" if seen is None else seen.last_id, *block]

    async def _opened(self, tape: str) -> str:
        """The turn or run that holds or last held the session and is not merged; empty without one. Raises Outage."""
        with self._server.outages():
            opened = await self._server.reply("HGET", TapeKeys(self._namespace, tape).state, "open")
        return (opened or b"").decode()

    async def sidecars(self, tape: str) -> list[str]:
        """The names of the tapes of its sidecars, sorted. Raises Outage."""
        return _sidecars(tape, await self._fields(tape))

    async def _fields(self, tape: str) -> list[str]:
        with self._server.outages():
            fields = await self._server.reply("HKEYS", TapeKeys(self._namespace, tape).state)
        return [field.decode(errors="replace") for field in fields]

    async def delete(self, tape: str, *, wait_s: float, guard: Hook | None, forget: Hook | None) -> None:
        """Remove every key with the tape's name; the lock goes last. May be repeated. See `RedisTapeStore.delete`."""
        holder = f"delete-{secrets.token_hex(8)}"
        async with self._lock.hold(tape, holder, wait_s, between_turns=True) as grant:
            if guard:
                await guard()
            # What belongs to single turns goes first: it is found by what is removed after it.
            async for turns in self._turns(tape):
                await self._unlink_turns(tape, turns)
            await self._remove(tape, grant)
            if forget:
                await forget()

    async def _turns(self, tape: str) -> AsyncIterator[list[str]]:
        """All turns and runs of which keys may be left, in pages."""
        keys = TapeKeys(self._namespace, tape)
        with self._server.outages():
            parked = await self._server.reply("ZRANGE", keys.parked_turns, 0, -1)
        yield [turn.decode() for turn in parked]
        yield list(filter(None, [await self._opened(tape)]))
        async for page in fields_of(self._server, keys.turns):
            yield [turn.decode() for turn, _ in page]

    async def _unlink_turns(self, tape: str, turns: Sequence[str]) -> None:
        keys = TapeKeys(self._namespace, tape)
        gone = [key for turn in turns for key in (keys.frames(turn), keys.journal(turn), keys.parked(turn))]
        if gone:
            with self._server.outages():
                await self._server.reply("UNLINK", *gone)

    async def _remove(self, tape: str, grant: Grant) -> None:
        keys = TapeKeys(self._namespace, tape)
        fields = await self._fields(tape)
        tapes = [tape, *_sidecars(tape, fields)]
        damaged = [TapeKeys(self._namespace, name).damaged for name in tapes]
        if any(field.rpartition("/")[2] == "repair" for field in fields):
            # No key holds their names, which tell when they were set aside.
            damaged += await keys_like(self._server, keys.set_aside_pattern, beside=keys.state)
        gone = [*tape_keys(self._namespace, tapes), *damaged, keys.state, keys.turns, *keys.batches, keys.parked_turns]
        with self._server.outages():
            verdict, *rest = await _DELETE.run(self._server, [keys.fence, *gone], [grant.fence])
        if verdict != b"OK":
            raise refused(tape, rest[0].decode())


def _sidecars(tape: str, fields: Iterable[str]) -> list[str]:
    """The tapes that the fields of `state` tell of beside the tape's own."""
    names = {field.partition("/")[0] for field in fields if "/" in field}
    return [f"{tape}{SIDECAR_MARKER}{name}" for name in sorted(names)]
