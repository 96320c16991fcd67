"""A connection is a guest in the task that uses it: it gives up when it is told to, and not before its time."""

import asyncio
import time
from pathlib import Path

import pytest

from bub_redis.errors import Outage
from bub_redis.storage.client import RedisServer
from bub_redis.testing import EmbeddedServer, wait_until
from bub_redis.turns import TurnClient
from tests.redis.slow_line import slow_line

LARGE = b"x" * 2_500_000
TIMEOUT_S = 0.2


@pytest.mark.parametrize("over", ["unix", "tcp"])
async def test_what_a_slow_line_carries_bit_by_bit_is_waited_for(
    server: EmbeddedServer, tmp_path: Path, over: str
) -> None:
    """A large merge, or a large page, would else never get through, however often it is tried."""
    async with (
        slow_line(server.socket_path, tmp_path / "line.sock" if over == "unix" else None) as url,
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
        slow_line(server.socket_path, tmp_path / "line.sock", **carries) as url,
        RedisServer(url, timeout_s=TIMEOUT_S, retries=0) as stuck,
    ):
        with pytest.raises(Outage, match="timed out"), stuck.outages():
            await stuck.commands.execute_command("ECHO", LARGE)


async def test_a_server_that_hangs_is_tried_as_often_as_was_asked_for(tmp_path: Path) -> None:
    """To connect is part of a try: each of them connects once."""
    connections: list[asyncio.StreamWriter] = []

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    async with await asyncio.start_unix_server(hang, tmp_path / "hangs.sock"):
        async with RedisServer(f"unix://{tmp_path}/hangs.sock", timeout_s=0.05, retries=2) as hanging:
            with pytest.raises(Outage), hanging.outages():
                await hanging.reply("PING")
        assert len(connections) == 3
        for writer in connections:
            writer.transport.abort()


async def test_what_is_given_up_half_way_is_not_sent_on(server: EmbeddedServer, namespace: str, tmp_path: Path) -> None:
    async with (
        slow_line(server.socket_path, tmp_path / "line.sock") as url,
        RedisServer(url) as slow,
        RedisServer(server.url) as direct,
    ):

        async def most_that_is_read_bytes() -> int:
            return max(int(client["qbuf"]) for client in await direct.commands.client_list())

        async def half_of_it_is_there() -> bool:
            return await most_that_is_read_bytes() > len(LARGE) // 4

        async def nothing_is_on_its_way() -> bool:
            return await most_that_is_read_bytes() < len(LARGE) // 8

        sending = asyncio.create_task(slow.reply("SET", f"{namespace}:large", LARGE))
        await wait_until(half_of_it_is_there, "a part of the command to arrive")
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await wait_until(nothing_is_on_its_way, "the connection to be closed")
        assert not await direct.commands.exists(f"{namespace}:large")


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
