"""The only place that builds Redis clients, and the one that turns their errors into ours.

Two pools per server: short commands with a short timeout, and blocking reads, whose timeout must exceed the block.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import redis.exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from bub_redis.errors import BubError, ConfigError, Outage, ServerUnfit, StoreClosed, TapeBlocked

COMMAND_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 2.0
BLOCK_S = 5
"""The longest that a blocking read may block."""
_BLOCKING_TIMEOUT_S = BLOCK_S + 10.0
_RETRIES = 3
_TEMPORARY_CODES = frozenset(
    {"LOADING", "READONLY", "OOM", "MISCONF", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "BUSY", "TRYAGAIN"}
)
OLDEST_REDIS = (7, 0)
OLDEST_VALKEY = (7, 2)


@dataclass(frozen=True)
class ServerInfo:
    """What a server says of itself."""

    name: str
    version: str
    eviction_policy: str
    append_only: bool


def masked(url: str) -> str:
    """`url` without its password and parameters, for logs and errors."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = parts.hostname or "localhost"
    return f"{parts.scheme}://{host}:{parts.port or 6379}{parts.path}"


class RedisServer:
    """One Redis or Valkey server and this process's connections to it.

    Made per event loop; opens no connection before the first command. Replies are bytes.
    """

    def __init__(self, url: str) -> None:
        """Raises ConfigError for a URL that is none."""
        self.address = masked(url)
        self._closed = False
        self._commands = self._client(url, COMMAND_TIMEOUT_S)
        self._blocking = self._client(url, _BLOCKING_TIMEOUT_S)

    def _client(self, url: str, timeout_s: float) -> Redis:
        try:
            # Sockets reached by path have no keepalive; redis-py refuses the option there.
            keepalive: dict[str, Any] = {} if url.startswith("unix:") else {"socket_keepalive": True}
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=128,
                timeout=COMMAND_TIMEOUT_S,
                socket_timeout=timeout_s,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                health_check_interval=15,
                retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), _RETRIES),
                # A fresh list each time: redis-py appends to the one it is given.
                retry_on_error=[redis_errors.ConnectionError, redis_errors.TimeoutError, OSError],
                **keepalive,
            )
        except ValueError:
            raise ConfigError(
                f"{self.address!r} is no Redis URL; write redis://[:password@]host:port/0, rediss://… or unix:///path"
            ) from None
        return Redis.from_pool(pool)

    @property
    def commands(self) -> Redis:
        """For commands that answer at once. Raises StoreClosed after close."""
        self._ensure_open()
        return self._commands

    @property
    def blocking(self) -> Redis:
        """For reads that block, at most BLOCK_S. Raises StoreClosed after close."""
        self._ensure_open()
        return self._blocking

    def _ensure_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the connections to {self.address} were closed; open the store or client again")

    @contextmanager
    def outages(self) -> Iterator[None]:
        """Raise what redis-py raises inside as an error of ours: Outage, TapeBlocked, ConfigError or ServerUnfit.

        Replies of the server are named by their code only: redis-py adds the command to them, which holds user text.
        """
        try:
            yield
        except (redis_errors.RedisError, OSError) as error:
            raise self._translated(error) from None

    def _translated(self, error: Exception) -> BubError:
        match error:
            case redis_errors.AuthenticationError() | redis_errors.AuthorizationError():
                return ConfigError(f"{self.address} refuses the user or password; mend the ones in the URL")
            case redis_errors.NoPermissionError():
                return ConfigError(
                    f"{self.address}: the user may not do this; see deploy/users.acl for the rights needed"
                )
            case redis_errors.BusyLoadingError() | redis_errors.ReadOnlyError() | redis_errors.OutOfMemoryError():
                return Outage(f"{self.address} cannot serve now ({type(error).__name__})")
            case redis_errors.ConnectionError() | redis_errors.TimeoutError() | OSError():
                return Outage(
                    f"no answer from {self.address} ({_reason(error)}); is the server running and the URL right?"
                )
            case redis_errors.ResponseError():
                return self._translated_reply(str(error).partition(" ")[0])
            case _:
                return Outage(f"{self.address}: {type(error).__name__}")

    def _translated_reply(self, code: str) -> BubError:
        if code in _TEMPORARY_CODES:
            return Outage(f"{self.address} cannot serve now ({code})")
        if code == "WRONGTYPE":
            return TapeBlocked(f"a key at {self.address} is of another type; run `bub-redis tape verify`")
        if code == "NOAUTH":
            return ConfigError(f"{self.address} wants a password; put it into the URL: redis://:password@host:port/0")
        return ServerUnfit(f"{self.address} refused a command ({code})")

    async def info(self) -> ServerInfo:
        """What the server says of itself. Raises Outage and ConfigError."""
        with self.outages():
            server = await self.commands.info("server")
            memory = await self.commands.info("memory")
            persistence = await self.commands.info("persistence")
        is_valkey = "valkey_version" in server
        return ServerInfo(
            name="Valkey" if is_valkey else "Redis",
            version=str(server["valkey_version" if is_valkey else "redis_version"]),
            eviction_policy=str(memory.get("maxmemory_policy", "unknown")),
            append_only=bool(persistence.get("aof_enabled", 0)),
        )

    async def check(self) -> ServerInfo:
        """The server's info if it may hold tapes. Raises ServerUnfit if it is too old, Outage, ConfigError."""
        info = await self.info()
        oldest = OLDEST_VALKEY if info.name == "Valkey" else OLDEST_REDIS
        version = tuple(int(part) for part in info.version.split(".")[:2])
        if version < oldest:
            raise ServerUnfit(
                f"{self.address} is {info.name} {info.version}; Redis 7.0 or Valkey 7.2 at least is needed"
            )
        return info

    async def aclose(self) -> None:
        """Close all connections; may be repeated."""
        self._closed = True
        await asyncio.gather(
            self._commands.aclose(close_connection_pool=True),
            self._blocking.aclose(close_connection_pool=True),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<RedisServer {self.address}>"


def _reason(error: Exception) -> str:
    if isinstance(error, redis_errors.TimeoutError | TimeoutError):
        return "timed out"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "connection refused" if "111" in str(error) or "refused" in str(error) else "connection failed"
