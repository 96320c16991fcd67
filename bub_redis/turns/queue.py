"""The queue side: turns in order, who looks after them, and the doorbell for workers. Changed by scripts only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bub_redis.errors import Conflict
from bub_redis.settings import Settings
from bub_redis.storage.client import BLOCK_S, RedisServer
from bub_redis.storage.keys import ARQ_JOB_PREFIX, QueueKeys
from bub_redis.storage.script import Argument, Script
from bub_redis.tape.names import encode_name
from bub_redis.tape.receipt import Status
from bub_redis.turns.record import Request, Turn

_ENQUEUE, _CLAIM, _START, _BEAT, _FINISH, _HAND_BACK, _RECONCILE = (
    Script(__package__, name) for name in ("enqueue", "claim", "start", "beat", "finish", "hand_back", "reconcile")
)

_JOB_TTL_MS = 7 * 24 * 3600 * 1000
_WAKE_TTL_MS = 60_000
_LONGEST_GRACE_MS = 300_000
_RECONCILED_AT_ONCE = 50


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


@dataclass(frozen=True)
class Standing:
    """What the queue side knows of a turn now."""

    status: str
    place: int | None
    """How many turns of the session stand before it; None for one that has ended."""
    attempt: int
    worker: str | None
    """Who started it last; None before its first start."""
    result: bytes | None


class TurnQueue:
    """The scripts of the queue side on one server. Every call may be repeated; all raise Outage."""

    def __init__(self, server: RedisServer, settings: Settings) -> None:
        self.server = server
        self.namespace = settings.namespace
        self._keys = QueueKeys(settings.namespace)
        self._grace_ms = int(settings.waiting_grace_s * 1000)
        self._lease_ms = int(settings.lease_s * 1000)
        self._beat_ms = int(settings.beat_s * 1000)
        self._turn_ttl_ms = int(settings.turn_ttl_s * 1000)

    async def _run(self, script: Script, keys: Iterable[str], args: Iterable[Argument]) -> Any:
        """Run a script that may dispatch: its own keys and arguments follow the shared ones."""
        shared = [
            self._keys.leases,
            self._keys.waiting,
            self._keys.dispatches,
            self._keys.wake,
            self._keys.arq,
        ]
        prefixes: list[Argument] = [
            self._keys.turn_prefix,
            ARQ_JOB_PREFIX,
            self._keys.job_prefix,
            self._grace_ms,
            _JOB_TTL_MS,
            _WAKE_TTL_MS,
        ]
        with self.server.outages():
            return await script.run(self.server.commands, [*shared, *keys], [*prefixes, *args])

    async def enqueue(self, request: Request) -> bool:
        """Put a turn on its session's list; whether it is new.

        Raises InvalidInput; Conflict if the id is taken by a turn with another prompt, model, options, state or
        metadata. Nothing is changed then.
        """
        turn = request.turn
        fields: dict[str, bytes] = {**request.encoded(), "body": request.job_body()}
        verdict, *_ = await self._run(
            _ENQUEUE,
            [self._keys.turn(turn.full_id), self._keys.queue(turn.tape)],
            [turn.full_id, request.digest(), *(part for pair in fields.items() for part in pair)],
        )
        if verdict == b"CONFLICT":
            raise Conflict(
                f"turn {turn.id!r} of session {turn.session!r} exists with other content; nothing was changed. "
                "Send it under another turn id"
            )
        return bool(verdict == b"NEW")

    async def claim(self, most: int) -> list[str]:
        """Take up to `most` due jobs, oldest first; they are nobody else's then."""
        with self.server.outages():
            jobs = await _CLAIM.run(self.server.commands, [self._keys.arq], [most])
        return [job.decode() for job in jobs]

    async def wait_for_work(self) -> None:
        """Return when there may be work, or after BLOCK_S without."""
        with self.server.outages():
            await self.server.blocking.execute_command("BLPOP", self._keys.wake, BLOCK_S)

    async def start(self, attempt: Attempt) -> Started | None:
        """Make the attempt the running one; None if it is not the current one any more."""
        fields = ("dispatch", "handbacks", *Request.FIELDS)
        verdict, *values = await self._run(
            _START,
            [self._keys.turn(attempt.full_id)],
            [attempt.full_id, attempt.number, attempt.worker, self._lease_ms, *fields],
        )
        if verdict != b"STARTED":
            return None
        named = dict(zip(fields, values, strict=True))
        return Started(attempt, Request.decode(named), int(named["dispatch"]), int(named["handbacks"]))

    async def beat(self, attempts: Sequence[Attempt], worker: str) -> list[bool]:
        """Renew the leases of attempts; for each whether it is still the running one."""
        pairs = [part for attempt in attempts for part in (attempt.full_id, attempt.number)]
        with self.server.outages():
            verdicts = await _BEAT.run(
                self.server.commands,
                [self._keys.leases],
                [self._keys.turn_prefix, worker, self._lease_ms, *pairs],
            )
        return [verdict == b"HELD" for verdict in verdicts]

    async def finish(self, turn: Turn, *, receipt_id: str, digest: str, status: Status, result: bytes) -> None:
        """End the turn by what the receipt on its tape says, and dispatch the next of the session."""
        keys = self._keys
        await self._run(
            _FINISH,
            [keys.turn(turn.full_id), keys.queue(turn.tape), keys.receipt_prefix + encode_name(turn.tape)],
            [turn.full_id, receipt_id, digest, status, result, self._turn_ttl_ms],
        )

    async def hand_back(self, attempt: Attempt, *, pause_s: float, reason: str) -> bool:
        """Give the attempt up, uncharged; the next may run after the pause. False if it was not ours any more."""
        (verdict,) = await self._run(
            _HAND_BACK,
            [self._keys.turn(attempt.full_id)],
            [attempt.full_id, attempt.number, attempt.worker, int(pause_s * 1000), reason],
        )
        return bool(verdict == b"HANDED_BACK")

    async def reconcile(self) -> list[tuple[str, str]]:
        """Have turns run again that nobody looks after; what was done, and to which full id."""
        flat = await self._run(
            _RECONCILE, [], [self._keys.queue_prefix, self._beat_ms, _LONGEST_GRACE_MS, _RECONCILED_AT_ONCE]
        )
        words = [word.decode() for word in flat]
        return list(zip(words[::2], words[1::2], strict=True))

    async def standing(self, turn: Turn) -> Standing | None:
        """What is known of the turn now; None if nothing is (it ended long ago, or never was)."""
        with self.server.outages():
            async with self.server.commands.pipeline(transaction=True) as pipe:
                pipe.hmget(self._keys.turn(turn.full_id), ["status", "attempt", "worker", "result"])
                pipe.lpos(self._keys.queue(turn.tape), turn.full_id)
                (status, attempt, worker, result), place = await pipe.execute()
        if status is None:
            return None
        return Standing(status.decode(), place, int(attempt), worker and worker.decode(), result)

    async def heartbeat(self, worker: str, fields: Mapping[str, str | int], ttl_s: float) -> None:
        """Show that a worker lives, and its load."""
        key = self._keys.worker(worker)
        with self.server.outages():
            async with self.server.commands.pipeline(transaction=True) as pipe:
                pipe.hset(key, mapping=dict(fields))
                pipe.pexpire(key, int(ttl_s * 1000))
                await pipe.execute()

    async def say_goodbye(self, worker: str) -> None:
        """Remove the heartbeat of a worker that stops."""
        with self.server.outages():
            await self.server.commands.delete(self._keys.worker(worker))
