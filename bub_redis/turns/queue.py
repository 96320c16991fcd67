"""The queue side: turns in order, who looks after them, and the doorbell for workers. Changed by scripts only."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

from bub_redis.agent.steering import Steer
from bub_redis.errors import Conflict, NotFound, QueueFull
from bub_redis.settings import Settings
from bub_redis.storage.client import BLOCK_S, RedisServer
from bub_redis.storage.connection import Argument
from bub_redis.storage.keys import ARQ_JOB_PREFIX, QueueKeys, full_turn_id
from bub_redis.storage.script import Script
from bub_redis.tape.names import encode_name
from bub_redis.tape.receipt import Status
from bub_redis.turns.attempt import Attempt, Beat, Cancellation, Standing, Started
from bub_redis.turns.record import Request, Turn

_ENQUEUE, _STEER, _CANCEL, _CLAIM, _START, _BEAT, _FINISH, _HAND_BACK, _RECONCILE = (
    Script(__package__, name)
    for name in ("enqueue", "steer", "cancel", "claim", "start", "beat", "finish", "hand_back", "reconcile")
)

_JOB_TTL_MS = 7 * 24 * 3600 * 1000
_HINT_TTL_MS = 60_000
DEAD_TTL_MS = 7 * 24 * 3600 * 1000
_SUSPECT_PAUSE_MS = 1000
_LONGEST_GRACE_MS = 300_000
_RECONCILED_AT_ONCE = 50


_FULL = {
    "session": "session {turn.session!r} has {there} turns that have not ended; at most {most} are taken",
    "all": "{there} turns have not ended; at most {most} are taken",
    "turn": "the turn has {there} steering messages; at most {most} are taken",
}


def _flat(request: Request) -> list[Argument]:
    """All that is kept with a turn, field and value in turn."""
    fields = {**request.encoded(), "body": request.job_body()}
    return [part for pair in fields.items() for part in pair]


class TurnQueue:
    """The scripts of the queue side on one server. Every call may be repeated; all raise Outage."""

    def __init__(self, server: RedisServer, settings: Settings) -> None:
        self.server = server
        self.namespace = settings.namespace
        self._settings = settings
        self._keys = QueueKeys(settings.namespace)
        self._lease_ms = int(settings.lease_s * 1000)
        self._beat_ms = int(settings.beat_s * 1000)
        self._longest_ahead_ms = 2 * max(_LONGEST_GRACE_MS, self._lease_ms)
        self._turn_ttl_ms = int(settings.turn_ttl_s * 1000)

    async def _run(self, script: Script, keys: Iterable[str], args: Iterable[Argument]) -> Any:
        """Run a script that may dispatch: its own keys and arguments follow the shared ones."""
        of = self._keys
        shared = [of.leases, of.waiting, of.dispatches, of.wake, of.arq, of.dead, of.open_turns]
        prefixes: list[Argument] = [
            of.turn_prefix,
            ARQ_JOB_PREFIX,
            of.job_prefix,
            int(self._settings.waiting_grace_s * 1000),
            _JOB_TTL_MS,
            _HINT_TTL_MS,
            of.queue_prefix,
        ]
        with self.server.outages():
            return await script.run(self.server, [*shared, *keys], [*prefixes, *args])

    async def enqueue(self, request: Request) -> bool:
        """Put a turn on its session's list; whether it is new.

        Raises InvalidInput; QueueFull; Conflict if the id is taken by a turn with other content. Nothing is changed
        then.
        """
        turn, fields = request.turn, _flat(request)
        verdict, *rest = await self._run(
            _ENQUEUE,
            [self._keys.turn(turn.full_id), self._keys.queue(turn.tape)],
            [turn.full_id, request.digest(), *self._bounds, *fields],
        )
        self._refuse(turn, verdict, rest)
        return bool(verdict == b"NEW")

    async def steer(self, target: Turn, request: Request) -> bool:
        """Send a message into `target`; False if that has ended and the message is a turn of its own.

        Raises what `enqueue` raises.
        """
        turn = request.turn
        verdict, *rest = await self._run(
            _STEER,
            [
                self._keys.turn(turn.full_id),
                self._keys.queue(turn.tape),
                self._keys.turn(target.full_id),
                self._keys.steers(target.full_id),
            ],
            [
                turn.full_id,
                request.digest(),
                *self._bounds,
                self._keys.control_prefix,
                self._settings.max_steers,
                *_flat(request),
            ],
        )
        self._refuse(turn, verdict, rest)
        return bool(verdict == b"STEERED")

    @property
    def _bounds(self) -> tuple[int, int]:
        return self._settings.max_session_turns, self._settings.max_open_turns

    def _refuse(self, turn: Turn, verdict: bytes, rest: Sequence[bytes]) -> None:
        if verdict == b"CONFLICT":
            raise Conflict(
                f"turn {turn.id!r} of session {turn.session!r} exists with other content; nothing was changed. "
                "Send it under another turn id"
            )
        if verdict == b"FULL":
            which, there, most = rest
            raise QueueFull(_FULL[which.decode()].format(there=int(there), most=int(most), turn=turn))

    async def cancel(self, turn: Turn) -> Cancellation:
        """Cancel the turn: at once if it never started, else by word to whoever runs it; what came of it.

        Raises NotFound for an unknown turn.
        """
        verdict, *rest = await self._run(
            _CANCEL,
            [self._keys.turn(turn.full_id)],
            [turn.full_id, self._keys.control_prefix, self._turn_ttl_ms],
        )
        match verdict:
            case b"CANCELLED":
                return "cancelled"
            case b"CANCELLING":
                return "cancelling"
            case b"ENDED":
                return cast(Cancellation, rest[0].decode())
            case _:
                raise NotFound(f"session {turn.session!r} has no turn {turn.id!r}")

    async def steers(self, turn: Turn) -> list[Steer]:
        """The steering messages that were sent into the turn, in order; those that were cancelled too."""
        return [steer for steer, _ in await self._steers(turn)]

    async def open_steers(self, turn: Turn) -> list[Steer]:
        """The same without those that were cancelled."""
        return [steer for steer, is_cancelled in await self._steers(turn) if not is_cancelled]

    async def _steers(self, turn: Turn) -> list[tuple[Steer, bool]]:
        with self.server.outages():
            ids = await self.server.commands.execute_command("LRANGE", self._keys.steers(turn.full_id), 0, -1)
            if not ids:
                return []
            async with self.server.commands.pipeline(transaction=False) as pipe:
                for full_id in ids:
                    pipe.hmget(self._keys.turn(full_id.decode()), ["id", "prompt", "cancel"])
                found = await pipe.execute()
        return [
            (Steer(json.loads(prompt), steer_id.decode()), cancel is not None)
            for steer_id, prompt, cancel in found
            # Of one whose hash was lost nothing is known any more.
            if prompt is not None
        ]

    async def claim(self, most: int) -> list[str]:
        """Take up to `most` due jobs, oldest first; they are nobody else's then."""
        with self.server.outages():
            jobs = await _CLAIM.run(self.server, [self._keys.arq], [most])
        return [job.decode(errors="replace") for job in jobs]

    async def wait_for_work(self) -> None:
        """Return when there may be work, or after BLOCK_S without."""
        with self.server.outages():
            await self.server.blocking_reply("BLPOP", self._keys.wake, BLOCK_S)

    async def wait_for_control(self, worker: str) -> None:
        """Return when a turn of this worker may have been cancelled or steered, or after BLOCK_S without."""
        with self.server.outages():
            await self.server.blocking_reply("BLPOP", self._keys.control_prefix + worker, BLOCK_S)

    async def start(self, attempt: Attempt, *, take_suspects: bool = True) -> Started | None:
        """Make the attempt the running one; None if it is not the current one any more.

        None also where the turn is a suspect and the worker runs one: it is dispatched again, uncharged.
        """
        fields = ("dispatch", "handbacks", "crashes", *Request.FIELDS)
        verdict, *values = await self._run(
            _START,
            [self._keys.turn(attempt.full_id), self._keys.receipt_prefix + attempt.full_id.partition("/")[0]],
            [
                attempt.full_id,
                attempt.number,
                attempt.worker,
                self._lease_ms,
                self._settings.max_crashes,
                int(take_suspects),
                _SUSPECT_PAUSE_MS,
                *fields,
            ],
        )
        if verdict != b"STARTED":
            return None
        closing, receipt_id, digest, *values = values
        named = dict(zip(fields, values, strict=True))
        return Started(
            attempt,
            Request.decode(named),
            dispatch=int(named["dispatch"]),
            handbacks=int(named["handbacks"]),
            suspect=not closing and int(named["crashes"]) >= max(self._settings.max_crashes, 2),
            last_receipt=(receipt_id.decode(), digest.decode()),
            closing=closing.decode(),
        )

    async def beat(self, attempts: Sequence[Attempt], worker: str) -> list[Beat]:
        """Renew the leases of attempts; for each what the queue side says of it."""
        pairs = [part for attempt in attempts for part in (attempt.full_id, attempt.number)]
        with self.server.outages():
            verdicts = await _BEAT.run(
                self.server, [self._keys.leases], [self._keys.turn_prefix, worker, self._lease_ms, *pairs]
            )
        return [Beat(verdict.decode()) for verdict in verdicts]

    async def finish(
        self, turn: Turn, *, receipt_id: str, digest: str, status: Status, result: bytes, steers: Iterable[str] = ()
    ) -> None:
        """End the turn by what the receipt on its tape says, and dispatch the next of the session.

        `steers` are the ids of the steering messages that it used; others become turns of their own.
        """
        await self._run(
            _FINISH,
            [self._keys.turn(turn.full_id), self._keys.receipt_prefix + encode_name(turn.tape)],
            [
                turn.full_id,
                receipt_id,
                digest,
                status,
                result,
                self._turn_ttl_ms,
                self._settings.max_crashes,
                DEAD_TTL_MS,
                *(full_turn_id(turn.tape, steer) for steer in steers),
            ],
        )

    async def hand_back(self, attempt: Attempt, *, pause_s: float, reason: str, kind: str = "") -> bool:
        """Give the attempt up, uncharged; the next may run after the pause. False if it was not ours any more.

        `reason` is for people, `kind` for programs: of the error that led to it, empty without one. Both are kept until
        the next start.
        """
        (verdict,) = await self._run(
            _HAND_BACK,
            [self._keys.turn(attempt.full_id)],
            [attempt.full_id, attempt.number, attempt.worker, int(pause_s * 1000), reason, kind],
        )
        return bool(verdict == b"HANDED_BACK")

    async def reconcile(self) -> list[tuple[str, str]]:
        """Have turns run again that nobody looks after; what was done, and to which full id."""
        flat = await self._run(
            _RECONCILE, [], [self._beat_ms, _LONGEST_GRACE_MS, _RECONCILED_AT_ONCE, self._longest_ahead_ms]
        )
        words = [word.decode(errors="replace") for word in flat]
        return list(zip(words[::2], words[1::2], strict=True))

    async def standing(self, turn: Turn) -> Standing | None:
        """What is known of the turn now; None if nothing is (it ended long ago, or never was)."""
        with self.server.outages():
            async with self.server.commands.pipeline(transaction=True) as pipe:
                pipe.hmget(self._keys.turn(turn.full_id), ["status", "attempt", "worker", "receipt"])
                pipe.lpos(self._keys.queue(turn.tape), turn.full_id)
                (status, attempt, worker, receipt), place = await pipe.execute()
        if status is None:
            return None
        return Standing(status.decode(), place, int(attempt), worker and worker.decode(), receipt and receipt.decode())

    async def head(self, tape: str) -> Turn | None:
        """The turn of the session that runs or runs next; None for an idle session."""
        with self.server.outages():
            full_id = await self.server.commands.execute_command("LINDEX", self._keys.queue(tape), 0)
            if full_id is None:
                return None
            session, turn_id = await self.server.commands.execute_command(
                "HMGET", self._keys.turn(full_id.decode()), "session", "id"
            )
        return None if turn_id is None else Turn(session.decode(), tape, turn_id.decode())

    async def forget(self, tape: str, turns: Iterable[str]) -> None:
        """Remove what the queue side remembers of a tape that is deleted, and of its turns: results, dead turns."""
        full_ids = [full_turn_id(tape, turn) for turn in turns]
        with self.server.outages():
            async with self.server.commands.pipeline(transaction=False) as pipe:
                pipe.delete(self._keys.receipt_prefix + encode_name(tape))
                for full_id in full_ids:
                    pipe.delete(self._keys.turn(full_id), self._keys.steers(full_id))
                    pipe.zrem(self._keys.dead, full_id)
                await pipe.execute()
