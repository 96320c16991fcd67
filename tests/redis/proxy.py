"""A wire between client and server that fails on demand: replies are lost, requests never arrive, errors come."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bub_redis.testing import EmbeddedServer


class Proxy:
    """Forwards to a server; each armed fault strikes one request that holds its marker."""

    def __init__(self, server: EmbeddedServer, path: Path) -> None:
        self._server_path = server.socket_path
        self.path = path
        self._lost: list[bytes] = []
        self._cut: list[bytes] = []
        self._answered: list[tuple[bytes, bytes]] = []
        self.struck = 0

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"unix://{self.path}"

    def lose_reply_to(self, marker: bytes, times: int = 1) -> None:
        """Let the server do what the request asks, and cut the wire instead of handing over its reply."""
        self._lost += [marker] * times

    def cut_before(self, marker: bytes, times: int = 1) -> None:
        """Cut the wire before the request reaches the server."""
        self._cut += [marker] * times

    def answer(self, marker: bytes, reply: bytes, times: int = 1) -> None:
        """Answer the request in the server's place."""
        self._answered += [(marker, reply)] * times

    def heal(self) -> None:
        """Let everything pass from now on."""
        for faults in (self._lost, self._cut, self._answered):
            faults.clear()

    def _strikes(self, faults: list[bytes], request: bytes) -> bool:
        for marker in faults:
            if marker in request:
                faults.remove(marker)
                self.struck += 1
                return True
        return False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client, until either end or the test is over."""
        # asyncio's own callback asks a cancelled task for its exception, and complains.
        with suppress(asyncio.CancelledError):
            await self._forward(reader, writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(str(self._server_path))
        lost = asyncio.Event()
        handing_back = asyncio.create_task(self._hand_back(up_reader, writer, lost))
        try:
            # A request of these tests is read whole, since the client waits for its reply.
            while request := await reader.read(1 << 20):
                if self._strikes(self._cut, request):
                    return
                for marker, reply in self._answered:
                    if marker in request:
                        self._answered.remove((marker, reply))
                        self.struck += 1
                        writer.write(reply)
                        break
                else:
                    if self._strikes(self._lost, request):
                        lost.set()
                    up_writer.write(request)
                await writer.drain()
        finally:
            handing_back.cancel()
            for end in (writer, up_writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _hand_back(
        self, up_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event
    ) -> None:
        """Hand replies over as they come, up to the first that is to be lost: it cuts the wire."""
        while (answer := await up_reader.read(1 << 20)) and not lost.is_set():
            writer.write(answer)
        writer.close()


@asynccontextmanager
async def proxied(server: EmbeddedServer, folder: Path) -> AsyncIterator[Proxy]:
    """A proxy before a server, for as long as the block runs."""
    proxy = Proxy(server, folder / "proxy.sock")
    listening = await asyncio.start_unix_server(proxy.serve, str(proxy.path))
    try:
        yield proxy
    finally:
        listening.close()
