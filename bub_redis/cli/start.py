"""What `bub-redis worker` does."""

import structlog

from bub_redis.cli.connect import connected
from bub_redis.cli.doctor.checks import CLOCK_LIMIT_S
from bub_redis.settings import Settings, mistyped_variables
from bub_redis.storage.client import RedisServer
from worker.worker import run_worker

log = structlog.get_logger(__name__)


async def start(settings: Settings) -> None:
    """Run a worker until it is told to stop; warns of mistyped variables, and of a clock that makes dates mislead.

    Raises ConfigError, Outage or ServerUnfit if it cannot start.
    """
    for given, meant in mistyped_variables().items():
        log.warning("setting.unknown", variable=given, remedy=f"did you mean {meant}?")
    async with connected(settings) as client:
        for server in {client.server, client.store.server}:
            async with server.primaries() as primaries:
                for primary in primaries:
                    await _compare_clocks(primary)
    await run_worker(settings)


async def _compare_clocks(server: RedisServer) -> None:
    ahead_s = await server.clock_ahead_s()
    if abs(ahead_s) > CLOCK_LIMIT_S:
        log.warning("clock.differs", server=server.address, ahead_s=round(ahead_s, 1), remedy="set both by NTP")
