"""A turn as a person follows it: text as it arrives, a line for each tool call, and how it ended."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal, one_line, print_json, printable
from bub_redis.cli.rendering import call_text, result_text
from bub_redis.turns import Frame, Turn, TurnClient

_STATUS_STYLES = {"completed": "green", "failed": "red", "cancelled": "yellow"}


async def follow_turn(client: TurnClient, turn: Turn, *, as_json: bool) -> ExitCode:
    """Show the turn to its end; FAILED unless it completed. Raises NotFound, Outage."""
    printer = FramePrinter(Terminal())
    status = None
    async for frame in client.follow(turn):
        if as_json:
            print_json({"id": frame.id, "type": frame.type, "data": dict(frame.data)})
        else:
            if frame.type == "finished" and printer.text_is_missing:
                printer.show_answer((await client.result(turn)).text)
            printer.show(frame)
        status = frame.data.get("status") if frame.type == "finished" else None
    return ExitCode.OK if status == "completed" else ExitCode.FAILED


class FramePrinter:
    """Prints frames one after another; knows whether the cursor stands at the beginning of a line."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._in_line = False
        self._style = ""
        self._saw_text = False
        self._saw_gap = False

    @property
    def text_is_missing(self) -> bool:
        """Whether the answer has not been shown whole: none came, or frames were lost on the way."""
        return self._saw_gap or not self._saw_text

    def show(self, frame: Frame) -> None:
        """Print one frame."""
        data = frame.data
        match frame.type:
            case "text" | "reasoning":
                self._piece(data["delta"], "dim italic" if frame.type == "reasoning" else "")
                self._saw_text |= frame.type == "text"
            case "queued" if data["place"]:
                self._line(f"waiting behind {data['place']} of the session", "dim")
            case "restarted":
                self._line(f"attempt {frame.attempt} starts over; what stands above is void", "yellow")
                self._saw_text = self._saw_gap = False
            case "gap":
                self._line("some frames are missing here; the tape has everything", "yellow")
                self._saw_gap = True
            case "tool_call":
                self._lines((f"→ {call_text(call)}" for call in data["tool_calls"]), "cyan")
            case "tool_result":
                self._lines((f"← {result_text(result)}" for result in data["tool_results"]), "cyan")
            case "finished":
                self._line(_ending(data), _STATUS_STYLES.get(data["status"], ""))

    def show_answer(self, text: str | None) -> None:
        """Print the answer as the tape holds it."""
        if text is not None:
            self._line(printable(text), "")

    def _piece(self, delta: str, style: str) -> None:
        if self._in_line and style != self._style:
            self._end_line()
        self._terminal.print(Text(printable(delta), style=style), end="")
        self._in_line, self._style = not delta.endswith("\n"), style

    def _line(self, text: str, style: str) -> None:
        self._lines([text], style)

    def _lines(self, texts: Iterable[str], style: str) -> None:
        self._end_line()
        for text in texts:
            self._terminal.print(Text(text, style=style))

    def _end_line(self) -> None:
        if self._in_line:
            self._terminal.print()
        self._in_line = False


def _ending(data: Mapping[str, Any]) -> str:
    reason = f": {one_line(data['error'])}" if data.get("error") else ""
    return f"{data['status']}{reason} (entries {data['first']} to {data['last']} of the tape)"
