"""A slow line between client and server."""

import asyncio
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def slow_line(
    far: Path | int, path: Path | None = None, *, there: float = math.inf, back: float = math.inf
) -> AsyncIterator[str]:
    """A line to a socket or port that carries 64 KB every 10 ms, and so many bytes in all; the URL of its near end.

    Over TCP without a path: this side's kernel then takes most of a large command at once.
    """

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: float) -> None:
        while left > 0 and (data := await reader.read(65_536)):
            left -= len(data)
            await asyncio.sleep(0.01)  # noqa: TID251 - the line's own pace
            writer.write(data)
            await writer.drain()
        if left > 0:
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await _connected(far)
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


async def _connected(far: Path | int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(far, int):
        return await asyncio.open_connection("127.0.0.1", far)
    return await asyncio.open_unix_connection(str(far))
