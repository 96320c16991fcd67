"""The servers that a command talks to, checked before it does anything."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bub_redis.cli.embedded import command_settings
from bub_redis.cli.output import note
from bub_redis.errors import ConfigError, Conflict, NotFound, TapeBlocked
from bub_redis.settings import Settings, setting_source
from bub_redis.storage.client import RedisServer
from bub_redis.tape import Tape, session_tape_name
from bub_redis.turns import TurnClient


@asynccontextmanager
async def connected(settings: Settings | None = None) -> AsyncIterator[TurnClient]:
    """A client for the servers that the settings name, or `command_settings`, and that may hold tapes.

    Raises ConfigError, Outage or ServerUnfit before anything else happens.
    """
    settings = settings or command_settings()
    check_urls(settings)
    async with TurnClient(settings) as client:
        await client.server.check_single()
        for server in {client.server, client.store.server}:
            async with server.primaries() as primaries:
                for primary in primaries:
                    await primary.check(force=settings.force)
        yield client


def check_urls(settings: Settings) -> None:
    """Raise ConfigError for a URL that is none, with the setting that holds it. Connects to nothing."""
    if problems := url_problems(settings):
        raise ConfigError("; ".join(problems.values()))


def url_problems(settings: Settings) -> dict[str, str]:
    """What is wrong with the URLs, by setting: where each is given, the cause and the remedy."""
    problems = {}
    for name in ("redis_url", "tape_url"):
        url = getattr(settings, name)
        try:
            if url is not None:
                RedisServer(url.get_secret_value())
        except ConfigError as error:
            problems[name] = f"{setting_source(name)}: {error}"
    return problems


@asynccontextmanager
async def connected_tape(session: str) -> AsyncIterator[tuple[TurnClient, Tape]]:
    """A client, and the tape of a session that has one.

    Raises Conflict if what says where the tape stands was lost or overwritten, NotFound, InvalidInput, and what
    `connected` raises.
    """
    settings = command_settings()
    name = session_tape_name(session, settings.workspace)
    async with connected(settings) as client:
        try:
            head = await client.store.head(name)
        except TapeBlocked:
            raise Conflict(_unfit(name, session)) from None
        if not head.last:
            if await client.store.has_entries(name):
                raise Conflict(_unfit(name, session))
            raise NotFound(f"session {session!r} has no tape in namespace {settings.namespace!r}")
        if not await client.store.has_entries(name):
            note(f"the entries of tape {name!r} are gone: restore a backup, or see `bub-redis tape repair {session}`")
        yield client, Tape(name, client.store)


def _unfit(tape: str, session: str) -> str:
    return f"what says where tape {tape!r} stands was lost or overwritten; see `bub-redis tape repair {session}`"
