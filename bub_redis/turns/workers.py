"""The workers that live, as their heartbeats on the queue side tell."""

import time
from dataclasses import asdict, dataclass

from bub_redis.storage.keys import QueueKeys
from bub_redis.turns.queue import TurnQueue

_LISTED_MS = 24 * 3600 * 1000
"""How long a worker that died stays in the list; its heartbeat is gone long before."""


@dataclass(frozen=True, order=True)
class WorkerLoad:
    """A worker that lives."""

    id: str
    host: str
    pid: int
    running: int
    """How many turns it runs now."""
    max_jobs: int


class Workers:
    """The list of workers. Every call may be repeated; all raise Outage."""

    def __init__(self, queue: TurnQueue) -> None:
        self._server = queue.server
        self._keys = QueueKeys(queue.namespace)

    async def heartbeat(self, load: WorkerLoad, ttl_s: float) -> None:
        """Show that a worker lives, for `ttl_s` from now, and its load."""
        key, now_ms = self._keys.worker(load.id), time.time_ns() // 1_000_000
        fields = asdict(load)
        del fields["id"]
        with self._server.outages():
            async with self._server.commands.pipeline(transaction=True) as pipe:
                pipe.hset(key, mapping=fields)
                pipe.pexpire(key, int(ttl_s * 1000))
                pipe.zadd(self._keys.workers, {load.id: now_ms})
                pipe.zremrangebyscore(self._keys.workers, "-inf", now_ms - _LISTED_MS)
                await pipe.execute()

    async def say_goodbye(self, worker: str) -> None:
        """Remove the heartbeat of a worker that stops."""
        with self._server.outages():
            async with self._server.commands.pipeline(transaction=True) as pipe:
                pipe.delete(self._keys.worker(worker))
                pipe.zrem(self._keys.workers, worker)
                await pipe.execute()

    async def alive(self) -> list[WorkerLoad]:
        """The workers that live, by id."""
        with self._server.outages():
            ids = [worker.decode() for worker in await self._server.commands.zrange(self._keys.workers, 0, -1)]
            async with self._server.commands.pipeline(transaction=False) as pipe:
                for worker in ids:
                    pipe.hmget(self._keys.worker(worker), ["host", "pid", "running", "max_jobs"])
                loads = await pipe.execute()
        return sorted(
            WorkerLoad(worker, host.decode(), int(pid), int(running), int(most))
            for worker, (host, pid, running, most) in zip(ids, loads, strict=True)
            # The heartbeat of a worker that died is gone before its place in the list is.
            if most is not None
        )
