"""Connections that can be cancelled, wait for slow lines and cost little, and a pool that hands them out at once.

redis-py writes under `asyncio.wait_for`, which before Python 3.12 swallows a cancellation that comes together with
the end of the write: a turn that was told to stop, or a command at Ctrl-C, would go on as if nothing had happened.

Its timeouts are for whole commands and replies. Here they count from the last bytes that passed: a large merge on a
slow line takes as long as it takes, since one that is given up half-way is given up each time.

Before each command redis-py also waits two rounds of the event loop to see whether the connection is still good, and
its pool takes a lock twice: together half of what a short command costs. And it joins commands in Python, where
hiredis, which it asks for only in its other client, does it in C. Its pipelines go through five coroutines for each
reply. See docs/decisions/0040-short-commands.md.
"""

import asyncio
import fcntl
import struct
import termios
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from redis._parsers import _AsyncHiredisParser
from redis.asyncio.connection import (
    AbstractConnection,
    BlockingConnectionPool,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import HiredisRespSerializer
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeoutError

Argument = str | bytes | int
Command = Sequence[Argument]
Locate = Callable[[], Awaitable[tuple[str, int]]]
"""Tells host and port of the server each time that it is connected to."""
_HIREDIS: Any = HiredisRespSerializer()
_ONCE = Retry(NoBackoff(), 0)
_LOOKS = 5
"""How often it is looked within a timeout whether anything passes."""


class _PatientParser(_AsyncHiredisParser):
    def on_connect(self, connection: Any) -> None:
        super().on_connect(connection)  # type: ignore[no-untyped-call]
        self._connection = connection

    async def read_from_socket(self) -> Any:
        connection = self._connection
        return await _while_it_moves(super().read_from_socket, connection._writer, connection.patience_s)


class PatientConnection(AbstractConnection):
    """A connection that waits as long as bytes pass."""

    host: str
    port: int

    def __init__(self, *, socket_timeout: float | None = None, locate: Locate | None = None, **options: Any) -> None:
        super().__init__(parser_class=_PatientParser, **options)
        self._locate = locate
        self._is_demoted = False
        self.patience_s = socket_timeout
        """How long the other end may neither take nor send anything that it should."""

    async def connect(self) -> None:
        """Connect, once: who sends commands repeats them, and redis-py would try to connect as often at each repeat.

        Raises redis-py's ConnectionError and TimeoutError.
        """
        repeating, self.retry = self.retry, _ONCE
        try:
            await super().connect()  # type: ignore[no-untyped-call]
        finally:
            self.retry = repeating

    async def _connect(self) -> None:
        self._is_demoted = False
        if self._locate:
            self.host, self.port = await self._locate()
        await super()._connect()  # type: ignore[no-untyped-call, safe-super]

    async def on_connect(self) -> None:
        """Sign in. Raises redis-py's ReadOnlyError where a sentinel named a server that is no primary any more."""
        await super().on_connect()
        if self._locate:
            (info,) = await self.ask([("INFO", "replication")])
            if isinstance(info, bytes) and b"role:master" not in info:
                raise ReadOnlyError("a replica")

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """Write a command, connecting first if need be. Raises redis-py's ConnectionError and TimeoutError."""
        if not self.is_connected:
            await self.connect()
        try:
            # Whoever is connected has a writer.
            writer: Any = self._writer
            writer.writelines(_chunks(command))
            if writer.transport.get_write_buffer_size():
                # What the socket did not take at once; a timeout for nothing costs as much as the writing.
                await _while_it_moves(writer.drain, writer, self.patience_s)
        except BaseException as error:
            # Half a command may have been written.
            raise await self._given_up(error, "writing to") from error.__cause__

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one piece; the replies, errors among them. Raises ConnectionError and TimeoutError."""
        await self.send_packed_command([packed for command in commands for packed in self.pack_command(*command)])
        try:
            parser: Any = self._parser
            replies = [await parser.read_response() for _ in commands]
        except BaseException as error:
            # What is still to be read belongs to nobody any more.
            raise await self._given_up(error, "reading from") from error.__cause__
        if any(map(_says_readonly, replies)):
            self._is_demoted = True
        return replies

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """The next reply. Raises what redis-py raises."""
        try:
            return await super().read_response(*args, **options)
        except ReadOnlyError:
            self._is_demoted = True
            raise

    async def disconnect(self, nowait: bool = False) -> None:
        """Close it. A server that hangs is left: TLS would have it take its leave, and redis-py raise for that."""
        writer: Any = self._writer
        try:
            await super().disconnect(nowait)
        except RedisTimeoutError:
            # The socket would stay open for half a minute more, or until the loop is gone, which complains.
            writer.transport.abort()

    async def _given_up(self, error: BaseException, doing: str) -> BaseException:
        """Close a connection that was left half-way by an error, and return the error to raise: redis-py's own."""
        writer: Any = self._writer
        if writer is not None:
            # Closing it would go on to send what is left, for as long as that takes.
            writer.transport.abort()
        await self.disconnect(nowait=True)
        if isinstance(error, TimeoutError):
            return RedisTimeoutError(f"Timeout {doing} socket")
        if isinstance(error, OSError):
            return RedisConnectionError(f"Error while {doing} socket: {error.strerror}")
        return error

    @property
    def is_ready(self) -> bool:
        """Whether it is connected to what was no replica yet and nothing was left unread, by what has arrived."""
        stream: Any = self._reader
        return stream is not None and not (self._is_demoted or stream._buffer or stream.at_eof() or stream.exception())

    def pack_command(self, *args: Any) -> list[bytes]:
        """A command as bytes. Raises redis-py's DataError for what is neither text, bytes nor a number."""
        packed: list[bytes] = _HIREDIS.pack(*args)
        return packed


class _Tcp(PatientConnection, Connection):
    pass


class _Tls(PatientConnection, SSLConnection):
    pass


class _Unix(PatientConnection, UnixDomainSocketConnection):
    pass


_PATIENT: dict[type[AbstractConnection], type[AbstractConnection]] = {
    Connection: _Tcp,
    SSLConnection: _Tls,
    UnixDomainSocketConnection: _Unix,
}


class Pool(BlockingConnectionPool):
    """A pool of such connections: locks only where somebody has to wait for one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.connection_class = _PATIENT.get(self.connection_class, self.connection_class)
        self._waiting = 0
        self._is_retired = False

    @property
    def repeats(self) -> int:
        """How often commands are sent again where a connection breaks."""
        retries: int = self.connection_kwargs["retry"]._retries
        return retries

    @property
    def host(self) -> str:
        """Where its connections lead; `localhost` for a socket reached by path."""
        return str(self.connection_kwargs.get("host", "localhost"))

    def beside(self, host: str, port: int) -> "Pool":
        """A pool of connections of the same kind to another address, over TCP."""
        options = {name: value for name, value in self.connection_kwargs.items() if name != "path"}
        # A fresh list: redis-py appends to the one it is given.
        options |= {"host": host, "port": port, "retry_on_error": list(options["retry_on_error"])}
        kind = _Tls if self.connection_class is _Tls else _Tcp
        return Pool(connection_class=kind, max_connections=self.max_connections, timeout=self.timeout, **options)

    async def get_connection(self, command_name: str | None = None, *keys: Any, **options: Any) -> PatientConnection:
        """A connection that is good, or not connected. Raises redis-py's ConnectionError if none is free in time."""
        # Those who wait come first.
        if self._waiting or not self.can_get_connection():
            self._waiting += 1
            try:
                waited_for: PatientConnection = await super().get_connection()
            finally:
                self._waiting -= 1
            return waited_for
        connection: PatientConnection = super().get_available_connection()  # type: ignore[no-untyped-call]
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        """Leave what is no good any more: who sends on it connects, as a part of what is repeated."""
        if isinstance(connection, PatientConnection) and not connection.is_ready:
            await connection.disconnect()

    async def ask_once(self, commands: Sequence[Command]) -> list[Any]:
        """The same as `ask`, and nothing is sent again."""
        connection = await self.get_connection()
        try:
            return await connection.ask(commands)
        finally:
            await self.release(connection)

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one piece; what the server answered to each, errors among them.

        All of them are sent again where the connection breaks. Raises redis-py's ConnectionError and TimeoutError.
        """
        connection: Any = await self.get_connection()
        try:
            replies: list[Any] = await connection.retry.call_with_retry(
                lambda: connection.ask(commands), lambda _: connection.disconnect()
            )
        finally:
            await self.release(connection)
        return replies

    async def release(self, connection: AbstractConnection) -> None:
        """Give a connection back."""
        if self._waiting:
            await super().release(connection)
        else:
            # Past the lock of the pool above, which only orders those who wait, and its events, which are for
            # credentials that are renewed.
            self._in_use_connections.remove(connection)
            self._available_connections.append(connection)
        if self._is_retired:
            await connection.disconnect(nowait=True)

    async def retire(self) -> None:
        """Close its connections, those in use once they are given back."""
        self._is_retired = True
        await self.disconnect(inuse_connections=False)


def _says_readonly(reply: Any) -> bool:
    """Whether a server refused as a replica, also within a transaction."""
    return isinstance(reply, ReadOnlyError) or (isinstance(reply, list) and ReadOnlyError in map(type, reply))


async def _while_it_moves(
    step: Callable[[], Awaitable[Any]], writer: asyncio.StreamWriter, patience_s: float | None
) -> Any:
    """Wait for a step that may be begun again. Raises TimeoutError once nothing has been sent on for `patience_s`."""
    look_s = None if patience_s is None else patience_s / _LOOKS
    left: int | None = None
    idle = 0
    while True:
        try:
            async with asyncio.timeout(look_s):
                return await step()
        except TimeoutError:
            before, left = left, _unsent_bytes(writer)
            idle = 0 if before is not None and left < before else idle + 1
            if idle == _LOOKS:
                raise


def _unsent_bytes(writer: asyncio.StreamWriter) -> int:
    """What is still on this side: with us, and with the kernel, which takes megabytes for a slow line at once."""
    queued = 0
    try:
        (queued,) = struct.unpack("i", fcntl.ioctl(writer.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4)))
    except (OSError, ValueError):
        # Closed meanwhile, or a socket that does not tell.
        pass
    return writer.transport.get_write_buffer_size() + int(queued)


def _chunks(command: bytes | str | Iterable[bytes]) -> Iterable[bytes]:
    if isinstance(command, str):
        return [command.encode()]
    return [command] if isinstance(command, bytes) else command
