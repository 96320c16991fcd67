"""A turn as a person follows it: text as it arrives, a line for each tool call, and how it ended."""

import asyncio
import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rich.text import Text

from bub_redis.cli.connect import connected
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal, note, one_line, print_json, printable
from bub_redis.cli.patience import Patience
from bub_redis.cli.rendering import call_text, result_text
from bub_redis.cli.streams import OutputLost
from bub_redis.cli.turn.standstill import standstill_told
from bub_redis.errors import InvalidInput, Outage
from bub_redis.turns import Frame, Turn, TurnClient

_FRAME_ID = re.compile(r"\d+-\d+")
_TOOL_STYLE = "cyan"
_STATUS_STYLES = {"completed": "green", "failed": "red", "cancelled": "yellow"}


async def follow_named(session: str, turn_id: str, *, after: str | None, as_json: bool) -> ExitCode:
    """Show a turn that was sent before. Raises NotFound, InvalidInput, and what `connected` raises."""
    if after is not None and not _FRAME_ID.fullmatch(after):
        raise InvalidInput(f"{after!r} is no frame's id; --json shows them, such as 1764501234567-0")
    async with connected() as client:
        return await follow_turn(client, client.turn(session, turn_id), after=after, as_json=as_json)


async def follow_turn(client: TurnClient, turn: Turn, *, as_json: bool, after: str | None = None) -> ExitCode:
    """Show the turn to its end; FAILED unless it completed.

    Says on stderr why the turn does not go on and, at Ctrl-C, how to follow it again. Outlives outages. Raises
    NotFound.
    """
    printer, patience = FramePrinter(Terminal()), Patience(limit_s=None)
    status = None
    try:
        while status is None:
            try:
                async with standstill_told(client, turn, printer.end_line):
                    async for frame in client.follow(turn, after=after):
                        patience.over()
                        if as_json:
                            print_json({"id": frame.id, "type": frame.type, "data": dict(frame.data)})
                        else:
                            await printer.show_whole(frame, client, turn)
                        after = frame.id
                        status = frame.data.get("status") if frame.type == "finished" else None
            except Outage as outage:
                printer.end_line()
                await patience.wait(outage)
    except asyncio.CancelledError:
        # The terminal may be what went away.
        with suppress(OSError, OutputLost):
            printer.end_line()
            note(_goes_on(turn, after))
        raise
    return ExitCode.OK if status == "completed" else ExitCode.FAILED


def _goes_on(turn: Turn, after: str | None) -> str:
    again = ["bub-redis", "turn", "follow", turn.session, turn.id, *(["--after", after] if after else [])]
    return f"The turn goes on without you; follow it again with `{shlex.join(again)}`"


class FramePrinter:
    """Prints frames one after another; knows whether the cursor stands at the beginning of a line."""

    def __init__(self, terminal: Terminal, *, says_completed: bool = True) -> None:
        """`says_completed`: whether the end of a turn that completed has a line of its own."""
        self._terminal = terminal
        self._says_completed = says_completed
        self._in_line = False
        self._style = ""
        self._saw_text = False
        self._saw_gap = False

    @property
    def text_is_missing(self) -> bool:
        """Whether the answer has not been shown whole: none came, or frames were lost on the way."""
        return self._saw_gap or not self._saw_text

    async def show_whole(self, frame: Frame, client: TurnClient, turn: Turn) -> None:
        """Print one frame, before the last one the answer from the tape if frames were missing. Raises Outage."""
        if frame.type == "finished":
            result = await client.result(turn)
            if self.text_is_missing:
                self.show_answer(result.text)
            if result.receipt is None and await client.store.committed(turn.tape, turn.id):
                # Frames outlive a reset of the tape, and the entries that they name.
                frame = replace(frame, data={**frame.data, "first": None})
        self.show(frame)

    def show(self, frame: Frame) -> None:
        """Print one frame."""
        match frame.type:
            case "text" | "reasoning":
                self._piece(frame.data["delta"], "dim italic" if frame.type == "reasoning" else "")
                self._saw_text |= frame.type == "text"
            case "finished":
                self.end_line()
                if self._says_completed or frame.data["status"] != "completed":
                    self._line(_ending(frame.data), _STATUS_STYLES.get(frame.data["status"], ""))
            case _:
                self._show_event(frame)

    def _show_event(self, frame: Frame) -> None:
        data = frame.data
        match frame.type:
            case "queued" if data["place"]:
                self._line(f"waiting behind {data['place']} of the session", "dim")
            case "restarted":
                self._line(f"attempt {frame.attempt} goes on; what was kept of the above comes again", "yellow")
                self._saw_text = self._saw_gap = False
            case "gap":
                self._line("some frames are missing here; the tape has everything", "yellow")
                self._saw_gap = True
            case "tool_call":
                self._lines((f"→ {call_text(call)}" for call in data["tool_calls"]), _TOOL_STYLE)
            case "tool_result":
                self._lines((f"← {result_text(result)}" for result in data["tool_results"]), _TOOL_STYLE)
            case "steered":
                self._lines((f"+ {result_text(message)}" for message in data["messages"]), _TOOL_STYLE)
            case "handoff":
                self._line(f"handoff {one_line(str(data['name']))}: a new context begins", "yellow")

    def show_answer(self, text: str | None) -> None:
        """Print the answer as the tape holds it."""
        if text is not None:
            self._line(printable(text), "")

    def _piece(self, delta: str, style: str) -> None:
        if self._in_line and style != self._style:
            self.end_line()
        self._terminal.print(Text(printable(delta), style=style), end="")
        self._in_line, self._style = not delta.endswith("\n"), style

    def _line(self, text: str, style: str) -> None:
        self._lines([text], style)

    def _lines(self, texts: Iterable[str], style: str) -> None:
        self.end_line()
        for text in texts:
            line = Text(text, style=style)
            if self._terminal.line_cells is not None and style == _TOOL_STYLE:
                line.truncate(self._terminal.line_cells, overflow="ellipsis")
            self._terminal.print(line)

    def end_line(self) -> None:
        """Go to the beginning of a line."""
        if self._in_line:
            self._terminal.print()
        self._in_line = False


def _ending(data: Mapping[str, Any]) -> str:
    reason = f": {one_line(data['error'])}" if data.get("error") else ""
    if "first" not in data:
        return f"{data['status']}{reason} (it never started: nothing of it is on the tape)"
    if data["first"] is None:
        return f"{data['status']}{reason} (the tape was reset since: nothing of it is there any more)"
    return f"{data['status']}{reason} (entries {data['first']} to {data['last']} of the tape)"
