"""What a follower sees, a line for each thing, with the seconds since a moment."""

import time

from rich.cells import cell_len
from rich.text import Text

from bub_redis.cli.output import Terminal, one_line, printable
from bub_redis.cli.rendering import call_text, result_text
from bub_redis.turns import Frame

_WHAT_CELLS = len("tool result")


class Timeline:
    """Prints frames and notes as they come, each beside the seconds since `began`, a time of `time.monotonic`."""

    def __init__(self, terminal: Terminal, began: float, line_cells: int) -> None:
        """Pieces of text are joined until a line has `line_cells`; its time is that of the first."""
        self._terminal = terminal
        self._began = began
        self._line_cells = line_cells
        self._text = ""
        self._text_at = began

    def show(self, frame: Frame) -> None:
        """Print one frame: what was said and done, and the end."""
        match frame.type:
            case "text":
                self._add(frame.data["delta"])
            case "tool_call":
                for call in frame.data["tool_calls"]:
                    self.note("tool call", call_text(call), "cyan")
            case "tool_result":
                for result in frame.data["tool_results"]:
                    self.note("tool result", result_text(result), "cyan")
            case "gap":
                self.note("gap", "some frames are missing here", "yellow")
            case "finished":
                said = f"{frame.data['status']}: entries {frame.data['first']} to {frame.data['last']} of the tape"
                self.note("finished", said, "green" if frame.data["status"] == "completed" else "red")

    def note(self, what: str, said: str, style: str = "") -> None:
        """Print a line of one's own, behind all text so far."""
        self._flush()
        self._line(time.monotonic(), what, said, style)

    def _add(self, piece: str) -> None:
        if not self._text:
            self._text_at = time.monotonic()
        self._text += piece
        if cell_len(self._text) >= self._line_cells:
            self._flush()

    def _flush(self) -> None:
        text, self._text = self._text, ""
        if text.strip():
            self._line(self._text_at, "text", one_line(text), "bold")

    def _line(self, at: float, what: str, said: str, style: str) -> None:
        line = Text.assemble(
            (f"{at - self._began:7.3f} s  ", "dim"), (f"{what:<{_WHAT_CELLS}}  ", style), printable(said)
        )
        line.truncate(self._terminal.width, overflow="ellipsis")
        self._terminal.print(line)
