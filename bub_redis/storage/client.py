"""The only place that builds Redis clients.

Two pools per server: short commands with a short timeout, and blocking reads, whose timeout must exceed the block.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import redis.exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from bub_redis.errors import ConfigError, Outage, ServerUnfit, StoreClosed
from bub_redis.storage.address import HOW_TO_WRITE, check_url, masked, url_beside
from bub_redis.storage.cluster import Nodes, slot_of
from bub_redis.storage.connection import Argument, Command, PatientConnection, Pool
from bub_redis.storage.outages import not_for_a_queue, translated
from bub_redis.storage.sentinel import located

COMMAND_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 2.0
BLOCK_S = 5
"""The longest that a blocking read may block."""
_BLOCKING_TIMEOUT_S = BLOCK_S + 10.0
_RETRIES = 3
OLDEST_REDIS = (7, 0)
OLDEST_VALKEY = (7, 2)


@dataclass(frozen=True)
class ServerInfo:
    """What a server says of itself."""

    name: str
    version: str
    eviction_policy: str
    append_only: bool
    is_cluster: bool = False
    """Whether it is a node of a cluster."""
    is_replica: bool = False
    """Whether it takes no writes."""

    @property
    def may_drop_tapes(self) -> bool:
        """Whether the server may remove keys by itself to make room."""
        return self.eviction_policy not in {"noeviction", "unknown"}


class RedisServer:
    """One Redis or Valkey server and this process's connections to it.

    Made per event loop; opens no connection before the first command. Replies are bytes.
    """

    def __init__(self, url: str, *, timeout_s: float = COMMAND_TIMEOUT_S, retries: int = _RETRIES) -> None:
        """Connections that wait `timeout_s` for an answer and repeat a command `retries` times.

        Raises ConfigError for a URL that is none, and for a database or parameter in it that there cannot be.
        """
        self.address = masked(url)
        check_url(url)
        self._url = url
        self._options: dict[str, Any] = {"timeout_s": timeout_s, "retries": retries}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_cluster: bool | None = None
        self._nodes = Nodes(self._new_pool(url, timeout_s, retries))
        self._blocking_nodes = Nodes(self._new_pool(url, _BLOCKING_TIMEOUT_S, retries))
        self._commands = Redis.from_pool(self._nodes.seed)

    def _new_pool(self, url: str, timeout_s: float, retries: int) -> Pool:
        try:
            socket_options = _socket_options(url)
            server_url, locate = located(url, **socket_options)
            pool = Pool.from_url(
                server_url,
                max_connections=128,
                timeout=COMMAND_TIMEOUT_S,
                socket_timeout=timeout_s,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                # No health checks: redis-py makes them while it connects, and without a password it then never ends.
                retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), retries),
                # A fresh list each time: redis-py appends to the one it is given.
                retry_on_error=[redis_errors.ConnectionError, redis_errors.TimeoutError, OSError],
                locate=locate,
                **socket_options,
            )
            # Connects to nothing, but reads every parameter, and the certificates that they name.
            connection: Any = pool.make_connection()  # type: ignore[no-untyped-call]
            if isinstance(connection, SSLConnection):
                connection.ssl_context.get()
        except OSError as error:
            raise ConfigError(
                f"the certificate, key or authority that the URL of {self.address} names cannot be used "
                f"({error.strerror})"
            ) from None
        except (ValueError, TypeError, redis_errors.RedisError):
            raise ConfigError(f"{self.address!r} is no Redis URL; {HOW_TO_WRITE}") from None
        return pool

    @property
    def commands(self) -> Redis:
        """Commands by name, always to the server that the URL names. Raises StoreClosed after close."""
        self.ensure_open()
        return self._commands

    async def ask(self, *commands: Command) -> list[Any]:
        """Send commands in one piece; what the server answered to each, errors among them.

        On a cluster their keys must be of one slot; a command without a key goes where the others go. For what is safe
        to repeat: all of it is sent again where the connection breaks. Raises StoreClosed after close, and redis-py's
        ConnectionError and TimeoutError.
        """
        self.ensure_open()
        return await self._nodes.ask(commands)

    async def ask_each(self, *commands: Command) -> list[Any]:
        """The same for commands that have nothing to do with each other, on keys of any slots.

        Where a node does not answer, its error stands in place of its replies.
        """
        self.ensure_open()
        return await self._nodes.ask_each(commands)

    async def reply(self, *command: Argument) -> Any:
        """Send one command; what the server answered, as it is. Raises what `ask` does and refusals too."""
        (reply,) = await self.ask(command)
        return raised(reply)

    async def blocking_reply(self, *command: Argument) -> Any:
        """The same for a command that may block, at most BLOCK_S."""
        self.ensure_open()
        (reply,) = await self._blocking_nodes.ask([command])
        return raised(reply)

    async def transact(self, *commands: Command) -> list[Any]:
        """Send commands between MULTI and EXEC, in one piece; the replies. Raises what `ask` does and refusals too."""
        *queued, replies = await self.ask(("MULTI",), *commands, ("EXEC",))
        return transacted(queued, replies)

    @asynccontextmanager
    async def connection(self, key: str) -> AsyncIterator[PatientConnection]:
        """A connection to the node that has `key`, until the block ends: for reads that block and are interrupted.

        Raises what `ask` does.
        """
        self.ensure_open()
        finding = [("EXISTS", key)]
        await self._blocking_nodes.ask(finding)
        # Beside the pool: its bound is for commands that come and go.
        connection: PatientConnection = self._blocking_nodes.of(finding).make_connection()  # type: ignore[no-untyped-call]
        try:
            yield connection
        finally:
            await connection.disconnect(nowait=True)

    async def slot_of(self, key: str) -> int | None:
        """The slot of a key on a cluster; None elsewhere, where all keys may be asked for together. Raises Outage."""
        return slot_of(key) if await self.is_cluster() else None

    async def is_cluster(self) -> bool:
        """Whether the URL names a node of a cluster; asked once. Raises Outage, ConfigError."""
        if self._is_cluster is None:
            # The node that the URL names may be gone, where others have told of the cluster.
            self._is_cluster = self._nodes.is_cluster or (await self.info()).is_cluster
        return self._is_cluster

    async def check_single(self) -> None:
        """Raise ConfigError for a cluster: turns are queued on one primary. Raises Outage."""
        if await self.is_cluster():
            raise not_for_a_queue(self.address)

    @asynccontextmanager
    async def primaries(self) -> AsyncIterator[list["RedisServer"]]:
        """The servers that take writes, until the block ends: this one, or each primary of the cluster.

        Raises Outage, ConfigError.
        """
        if not await self.is_cluster():
            yield [self]
            return
        with self.outages():
            addresses = await self._nodes.addresses()
        if not addresses:
            raise Outage(f"{self.address} is a node that no cluster has given slots; name one that takes part")
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(RedisServer(url_beside(self._url, host, port), **self._options))
                for host, port in addresses
            ]

    def ensure_open(self) -> None:
        """Raise StoreClosed after close, and in another event loop than the first one."""
        if self._closed:
            raise StoreClosed(f"the connections to {self.address} were closed; open the store or client again")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise StoreClosed(
                f"the connections to {self.address} belong to another event loop; open a store or client for each"
            )

    @contextmanager
    def outages(self) -> Iterator[None]:
        """Raise what redis-py raises inside as an error of ours: Outage, TapeBlocked, ConfigError or ServerUnfit."""
        try:
            yield
        except (redis_errors.RedisError, OSError) as error:
            raise translated(error, self.address) from None

    async def info(self) -> ServerInfo:
        """What the server says of itself. Raises Outage and ConfigError."""
        with self.outages():
            told: dict[str, Any] = await self.commands.info()
        is_valkey = "valkey_version" in told
        return ServerInfo(
            name="Valkey" if is_valkey else "Redis",
            version=str(told["valkey_version" if is_valkey else "redis_version"]),
            eviction_policy=str(told.get("maxmemory_policy", "unknown")),
            append_only=bool(told.get("aof_enabled", 0)),
            is_cluster=bool(told.get("cluster_enabled", 0)),
            is_replica=told.get("role", "master") != "master",
        )

    async def check(self, *, force: bool = False) -> ServerInfo:
        """The server's info if it may hold tapes.

        Raises ServerUnfit if it is too old, and without `force` if it may drop tapes to make room; Outage, ConfigError.
        """
        info = await self.info()
        oldest = OLDEST_VALKEY if info.name == "Valkey" else OLDEST_REDIS
        version = tuple(int(part) for part in info.version.split(".")[:2])
        if version < oldest:
            raise ServerUnfit(
                f"{self.address} is {info.name} {info.version}; Redis 7.0 or Valkey 7.2 at least is needed"
            )
        if info.may_drop_tapes and not force:
            raise ServerUnfit(
                f"{self.address} may drop tapes when its memory is full (maxmemory-policy {info.eviction_policy}); "
                "set maxmemory-policy noeviction, or take the risk with BUB_FORCE=1"
            )
        return info

    async def clock_ahead_s(self) -> float:
        """How far the server's clock is ahead of this machine's; below 0 where it is behind. Raises Outage."""
        before = time.time()
        with self.outages():
            seconds, microseconds = await self.commands.time()
        server_s: float = seconds + microseconds / 1e6
        return server_s - (before + time.time()) / 2

    async def aclose(self) -> None:
        """Close all connections; may be repeated."""
        self._closed = True
        await asyncio.gather(self._nodes.aclose(), self._blocking_nodes.aclose())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<RedisServer {self.address}>"


def raised(reply: Any) -> Any:
    """The reply, if it is no error of the server: those are raised."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def transacted(queued: Iterable[Any], replies: Any) -> list[Any]:
    """The replies of a transaction, given what was answered before EXEC and by it. Raises the first refusal."""
    for reply in queued:
        raised(reply)
    if not isinstance(raised(replies), list):
        raise redis_errors.ResponseError("EXEC was answered with nothing")
    return [raised(reply) for reply in replies]


def _socket_options(url: str) -> dict[str, bool]:
    match url.partition(":")[0]:
        case "unix":
            # redis-py refuses keepalive there.
            return {}
        case "rediss" | "rediss-sentinel":
            # As redis-py has it from 6.0 on: else a certificate of any other host will do. The URL may say so.
            return {"socket_keepalive": True, "ssl_check_hostname": "ssl_cert_reqs=none" not in url}
        case _:
            return {"socket_keepalive": True}
