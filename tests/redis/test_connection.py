"""A connection is a guest in the task that uses it: it gives up when it is told to, and not before its time."""

import asyncio
import math
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bub_redis.errors import Outage
from bub_redis.storage.client import RedisServer
from bub_redis.testing import EmbeddedServer
from bub_redis.turns import TurnClient

LARGE = b"x" * 2_500_000
TIMEOUT_S = 0.2


@asynccontextmanager
async def slow_line(
    server: EmbeddedServer, path: Path | None, *, there: float = math.inf, back: float = math.inf
) -> AsyncIterator[str]:
    """A line to a server that carries 64 KB every 10 ms, and so many bytes in all; the URL of its near end.

    Over TCP without a path: this side's kernel then takes most of a large command at once.
    """

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: float) -> None:
        while left > 0 and (data := await reader.read(65_536)):
            left -= len(data)
            await asyncio.sleep(0.01)  # noqa: TID251 - the line's own pace
            writer.write(data)
            await writer.drain()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(str(server.socket_path))
        ends.extend((writer, far_writer))
        pumps.append(asyncio.create_task(pump(reader, far_writer, there)))
        pumps.append(asyncio.create_task(pump(far_reader, writer, back)))

    pumps: list[asyncio.Task[None]] = []
    ends: list[asyncio.StreamWriter] = []
    if path is None:
        near = socket.socket()
        # A line holds little itself.
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        near.bind(("127.0.0.1", 0))
        listening = await asyncio.start_server(connect, sock=near)
        url = f"redis://127.0.0.1:{near.getsockname()[1]}"
    else:
        listening = await asyncio.start_unix_server(connect, str(path))
        url = f"unix://{path}"
    try:
        yield url
    finally:
        listening.close()
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for end in ends:
            end.close()
        await asyncio.gather(*(end.wait_closed() for end in ends), return_exceptions=True)


@pytest.mark.parametrize("over", ["unix", "tcp"])
async def test_what_a_slow_line_carries_bit_by_bit_is_waited_for(
    server: EmbeddedServer, tmp_path: Path, over: str
) -> None:
    """A large merge, or a large page, would else never get through, however often it is tried."""
    async with (
        slow_line(server, tmp_path / "line.sock" if over == "unix" else None) as url,
        RedisServer(url, timeout_s=TIMEOUT_S, retries=0) as slow,
    ):
        began = time.monotonic()
        assert await slow.commands.execute_command("ECHO", LARGE) == LARGE
        assert time.monotonic() - began > 3 * TIMEOUT_S


@pytest.mark.parametrize("carries", [{"there": 1_000_000}, {"back": 1_000_000}])
async def test_a_line_that_carries_nothing_more_is_an_outage(
    server: EmbeddedServer, tmp_path: Path, carries: dict[str, float]
) -> None:
    async with (
        slow_line(server, tmp_path / "line.sock", **carries) as url,
        RedisServer(url, timeout_s=TIMEOUT_S, retries=0) as stuck,
    ):
        with pytest.raises(Outage, match="timed out"), stuck.outages():
            await stuck.commands.execute_command("ECHO", LARGE)


async def test_no_cancellation_is_lost_whenever_it_comes(client: TurnClient) -> None:
    async def ping_on() -> None:
        while True:
            await client.server.commands.ping()

    for steps in range(60):
        work = asyncio.create_task(ping_on())
        for _ in range(steps):
            await asyncio.sleep(0)  # noqa: TID251 - a step of the event loop, not a time
        work.cancel()
        done, _ = await asyncio.wait({work}, timeout=1)
        assert done and work.cancelled()
