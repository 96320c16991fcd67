"""An OpenAI-compatible service on a loopback port of its own, which answers what a test scripts."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scripted:
    """One response: status, headers and pieces of the body; None as a piece is silence until the client leaves."""

    pieces: Sequence[bytes | None] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    whole: bool = True
    """Whether the body ends as it should; else the connection is cut after the last piece."""


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
    """One event of a stream."""
    body = {"id": "c", "object": "chat.completion.chunk", "model": "m", **more}
    body["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def streamed(*texts: str, usage: tuple[int, int] | None = None) -> Scripted:
    """An answer, piece by piece."""
    told = {} if usage is None else {"usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}}
    return Scripted([*(chunk({"content": text}) for text in texts), chunk({}, "stop", **told), DONE])


def calling(name: str, arguments: str, call_id: str = "c1") -> Scripted:
    """One tool call, its arguments in two pieces."""
    half = len(arguments) // 2
    opening = {"index": 0, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments[:half]}}
    rest = {"index": 0, "function": {"arguments": arguments[half:]}}
    return Scripted([chunk({"tool_calls": [opening]}), chunk({"tool_calls": [rest]}), chunk({}, "tool_calls"), DONE])


def refused(status: int, body: Any, **headers: str) -> Scripted:
    """An error response; a body that is no text is sent as JSON."""
    text = body if isinstance(body, str) else json.dumps(body)
    sent = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return Scripted([text.encode()], status, sent)


class OpenAIServer:
    """Plays its script, one response for each request, and keeps the bodies of the requests."""

    def __init__(self, script: Sequence[Scripted]) -> None:
        self._script = iter(script)
        self.requests: list[dict[str, Any]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.partition(b":")[2]) for line in head.splitlines() if line.lower().startswith(b"content-length")
            )
            self.requests.append(json.loads(await reader.readexactly(length)))
            await self._answer(next(self._script), reader, writer)
        finally:
            writer.close()

    async def _answer(self, scripted: Scripted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        headers = {**scripted.headers, "transfer-encoding": "chunked", "connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {scripted.status} Scripted\r\n{lines}\r\n".encode())
        for piece in scripted.pieces:
            if piece is None:
                await reader.read()
                return
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        if scripted.whole:
            writer.write(b"0\r\n\r\n")
            await writer.drain()


@asynccontextmanager
async def openai_server(*script: Scripted) -> AsyncIterator[OpenAIServer]:
    """A service that plays `script`; its `url` is what a provider's `api_base` takes."""
    played = OpenAIServer(script)
    server = await asyncio.start_server(played.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    played.url = f"http://{host}:{port}/v1"
    async with server:
        yield played
