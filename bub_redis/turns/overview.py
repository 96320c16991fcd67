"""The queue side as a person looks at it: turns that have not ended, why they wait, and those that died. Reads only."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from bub_redis.errors import ErrorKind
from bub_redis.storage.keys import QueueKeys
from bub_redis.tape.names import encode_name
from bub_redis.turns.attempt import DeadTurn
from bub_redis.turns.queue import DEAD_TTL_MS, TurnQueue
from bub_redis.turns.record import Request, Turn

_FIELDS = "session tape id status attempt crashes worker started_ms reason kind cancel body prompt overdue".split()
_READ_AT_ONCE = 200


@dataclass(frozen=True)
class OpenTurn:
    """A turn that has not ended."""

    turn: Turn
    status: str
    """`queued` or `running`."""
    place: int
    """How many turns of the session stand before it."""
    attempt: int
    crashes: int
    """How often it took its worker down, the present attempt included."""
    worker: str | None
    """Who runs it; None while it waits."""
    enqueued_ms: int
    started_ms: int | None
    """When its last attempt started; None before the first."""
    due_ms: int | None
    """From when it may be claimed; None unless it is dispatched and waits for a worker."""
    cancelled: bool
    """Whether it was cancelled and only has to be put on its tape as such."""
    overdue: bool
    """Whether its worker has not renewed the lease: it will run elsewhere."""
    handed_back: str | None
    """Why its last attempt was given up, uncharged; None if none was, or the next one has started."""
    prompt: str
    handed_back_kind: str = ""
    """The kind of the error for which it was given up; empty without one."""

    @property
    def blocked(self) -> bool:
        """Whether its tape refuses every write."""
        return self.status == "queued" and self.handed_back_kind == ErrorKind.BLOCKED


@dataclass(frozen=True)
class QueueCounts:
    """The queue side in numbers."""

    open: int
    running: int
    waiting: int
    """Turns at the head of their session that wait for a worker, or for their pause to end."""
    dead: int
    """Turns that took their worker down too often, and are still kept."""

    @property
    def behind(self) -> int:
        """Turns that wait for others of their session."""
        return max(0, self.open - self.running - self.waiting)


class QueueOverview:
    """Reads what a queue's scripts keep. Every method may raise Outage; nothing is ever changed."""

    def __init__(self, queue: TurnQueue) -> None:
        self._server = queue.server
        self._keys = QueueKeys(queue.namespace)

    async def counts(self) -> QueueCounts:
        """How many turns there are of each kind."""
        of = self._keys
        dead_since_ms = await self._dead_since_ms()
        with self._server.outages():
            async with self._server.commands.pipeline(transaction=True) as pipe:
                pipe.get(of.open_turns)
                pipe.zcard(of.leases)
                pipe.zcard(of.waiting)
                pipe.zcount(of.dead, dead_since_ms, "+inf")
                total, running, waiting, dead = await pipe.execute()
        return QueueCounts(max(0, int(total or 0)), running, waiting, dead)

    async def _dead_since_ms(self) -> int:
        """From when on dead turns are kept, by the server's clock, which also says when they died."""
        with self._server.outages():
            seconds, microseconds = await self._server.commands.time()
        return int(seconds) * 1000 + int(microseconds) // 1000 - DEAD_TTL_MS

    async def dead(self, most: int) -> list[DeadTurn]:
        """Turns that ended as poison and are still kept, newest first."""
        since_ms = await self._dead_since_ms()
        with self._server.outages():
            found = await self._server.commands.zrevrangebyscore(
                self._keys.dead, "+inf", since_ms, start=0, num=most, withscores=True
            )
            async with self._server.commands.pipeline(transaction=False) as pipe:
                for full_id, _ in found:
                    pipe.hmget(self._keys.turn(full_id.decode()), list(Request.FIELDS))
                contents = await pipe.execute()
        return [
            DeadTurn(Request.decode(dict(zip(Request.FIELDS, values, strict=True))), int(died_ms))
            for (_, died_ms), values in zip(found, contents, strict=True)
            if None not in values
        ]

    async def named(self, full_ids: Sequence[str]) -> list[dict[str, str | int]]:
        """What turns are called in logs: session, turn and attempt; what the full id says where the hash is gone."""
        with self._server.outages():
            async with self._server.commands.pipeline(transaction=False) as pipe:
                for full_id in full_ids:
                    pipe.hmget(self._keys.turn(full_id), ["session", "id", "attempt"])
                found = await pipe.execute()
        return [_named(full_id, values) for full_id, values in zip(full_ids, found, strict=True)]

    async def turns_of(self, tape: str) -> list[OpenTurn]:
        """The turns of one session that have not ended, in the order in which they run."""
        return await self._turns([encode_name(tape)])

    async def turns(self, *, most_sessions: int = 1000) -> list[OpenTurn]:
        """The turns of all sessions that have not ended, session by session, those that run first."""
        with self._server.outages():
            async with self._server.commands.pipeline(transaction=True) as pipe:
                # The head of each session with open turns has a place in one of the two.
                pipe.zrange(self._keys.leases, 0, most_sessions - 1)
                pipe.zrange(self._keys.waiting, 0, most_sessions - 1)
                running, waiting = await pipe.execute()
        heads = [full_id.decode() for full_id in (*running, *waiting)]
        return await self._turns(list(dict.fromkeys(head.partition("/")[0] for head in heads))[:most_sessions])

    async def _turns(self, encoded_tapes: Sequence[str]) -> list[OpenTurn]:
        full_ids: list[tuple[int, str]] = []
        with self._server.outages():
            for start in range(0, len(encoded_tapes), _READ_AT_ONCE):
                async with self._server.commands.pipeline(transaction=False) as pipe:
                    for tape in encoded_tapes[start : start + _READ_AT_ONCE]:
                        pipe.lrange(self._keys.queue_prefix + tape, 0, -1)
                    lists = await pipe.execute()
                full_ids += [(place, found.decode()) for ids in lists for place, found in enumerate(ids)]
        found: list[OpenTurn] = []
        for start in range(0, len(full_ids), _READ_AT_ONCE):
            found += await self._read(full_ids[start : start + _READ_AT_ONCE])
        return found

    async def _read(self, full_ids: Iterable[tuple[int, str]]) -> list[OpenTurn]:
        placed = list(full_ids)
        with self._server.outages():
            async with self._server.commands.pipeline(transaction=False) as pipe:
                for _, full_id in placed:
                    pipe.hmget(self._keys.turn(full_id), list(_FIELDS))
                hashes = await pipe.execute()
            async with self._server.commands.pipeline(transaction=False) as pipe:
                for (_, full_id), values in zip(placed, hashes, strict=True):
                    attempt = (values[_FIELDS.index("attempt")] or b"0").decode()
                    pipe.zscore(self._keys.arq, f"{self._keys.job_prefix}{full_id}:{attempt}")
                due = await pipe.execute()
        return [
            _open_turn(place, dict(zip(_FIELDS, values, strict=True)), score)
            for (place, _), values, score in zip(placed, hashes, due, strict=True)
            # None: it ended between the two reads.
            if values[0] is not None and values[_FIELDS.index("body")] is not None
        ]

    async def last_receipt(self, tape: str) -> tuple[str, str] | None:
        """Stream id and digest of the last receipt of a tape that was shown to the queue side; None if none was."""
        with self._server.outages():
            receipt = await self._server.commands.execute_command(
                "HMGET", self._keys.receipt_prefix + encode_name(tape), "id", "digest"
            )
        return None if None in receipt else (receipt[0].decode(), receipt[1].decode())


def _open_turn(place: int, fields: Mapping[str, bytes | None], due_ms: float | None) -> OpenTurn:
    def text(name: str) -> str:
        return (fields[name] or b"").decode()

    return OpenTurn(
        turn=Turn(text("session"), text("tape"), text("id")),
        status=text("status"),
        place=place,
        attempt=int(text("attempt") or 0),
        crashes=int(text("crashes") or 0),
        worker=text("worker") or None,
        enqueued_ms=int(json.loads(text("body"))["et"]),
        started_ms=int(text("started_ms")) if fields["started_ms"] else None,
        due_ms=None if due_ms is None else int(due_ms),
        cancelled=fields["cancel"] is not None,
        overdue=fields["overdue"] is not None,
        handed_back=text("reason") or None,
        prompt=json.loads(text("prompt")),
        handed_back_kind=text("kind"),
    )


def _named(full_id: str, values: Sequence[bytes | None]) -> dict[str, str | int]:
    session, turn, attempt = ((value or b"").decode(errors="replace") for value in values)
    if not (session and turn and attempt.isdecimal()):
        tape, _, turn_id = full_id.partition("/")
        return {"session": unquote(tape), "turn": unquote(turn_id)}
    return {"session": session, "turn": turn, "attempt": int(attempt)}
