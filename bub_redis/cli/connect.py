"""The servers that a command talks to, checked before it does anything."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bub_redis.settings import Settings, load_settings
from bub_redis.turns import TurnClient


@asynccontextmanager
async def connected(settings: Settings | None = None) -> AsyncIterator[TurnClient]:
    """A client for the servers that the settings name, or `BUB_*`, and that may hold tapes.

    Raises ConfigError, Outage or ServerUnfit before anything else happens.
    """
    async with TurnClient(settings or load_settings()) as client:
        for server in {client.server, client.store.server}:
            await server.check()
        yield client
