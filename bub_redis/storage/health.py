"""What a server says of its own state, for `bub-redis doctor`. Reads only, with commands that the ACL file grants."""

import time
from dataclasses import dataclass

from bub_redis.storage.client import RedisServer, ServerInfo
from bub_redis.storage.keys import TapeKeys

_PINGS = 20


@dataclass(frozen=True)
class Health:
    """A server's state at one moment."""

    info: ServerInfo
    role: str
    aof_ok: bool
    """Whether the last write to the append-only file worked; True where there is no such file."""
    used_bytes: int
    max_bytes: int
    """The memory limit; 0 for none."""
    clock_ahead_s: float
    median_trip_s: float
    worst_trip_s: float
    """The longest of some round trips."""


async def uncounted_entries(server: RedisServer, keys: TapeKeys) -> int:
    """How many entries of a tape's stream no script of ours has put there; below 0 if as many are gone.

    Raises TapeBlocked for a key of another type, Outage.
    """
    with server.outages():
        count, length = await server.transact(("HGET", keys.state, *keys.fields("count")), ("XLEN", keys.tape))
    return int(length) - int(count or 0)


async def survey(server: RedisServer) -> Health:
    """Ask a server how it is, in some twenty round trips. Raises Outage, ConfigError."""
    info = await server.info()
    with server.outages():
        told: dict[str, object] = await server.commands.info()
        trips_s = []
        for _ in range(_PINGS):
            began = time.perf_counter()
            await server.commands.ping()
            trips_s.append(time.perf_counter() - began)
    return Health(
        info=info,
        role=str(told.get("role", "unknown")),
        aof_ok=told.get("aof_last_write_status", "ok") == "ok",
        used_bytes=int(str(told.get("used_memory", 0))),
        max_bytes=int(str(told.get("maxmemory", 0))),
        clock_ahead_s=await server.clock_ahead_s(),
        median_trip_s=sorted(trips_s)[_PINGS // 2],
        worst_trip_s=max(trips_s),
    )
