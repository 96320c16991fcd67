"""Entries and calls as a person reads them: one line each."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from bub_redis.cli.output import one_line
from bub_redis.tape import TapeEntry

_STYLES = {
    "message": "bold",
    "tool_call": "cyan",
    "tool_result": "cyan",
    "anchor": "yellow",
    "error": "red",
}
_KIND_CELLS = len("tool_result")


class EntryLines:
    """Entries as lines, one after another: number, time (UTC), kind, what it says; one more for each new day."""

    def __init__(self, number_cells: int, line_cells: int | None) -> None:
        """`number_cells`: how wide numbers are; `line_cells`: where lines are cut, None for nowhere."""
        self._number_cells = number_cells
        self._line_cells = line_cells
        self._shown_day = ""

    def of(self, entry: TapeEntry) -> Iterator[Text]:
        """The lines of the next entry."""
        day, time_of_day = _moment(entry.date)
        if day and day != self._shown_day:
            self._shown_day = day
            yield Text(f"{day} UTC", style="dim")
        style = _STYLES.get(entry.kind, "dim")
        line = Text.assemble(
            (f"{entry.id:>{self._number_cells}}  {time_of_day}  ", "dim"),
            (f"{one_line(entry.kind):<{_KIND_CELLS}}  ", style),
            (summary(entry), "dim" if style == "dim" else ""),
        )
        if self._line_cells is not None:
            line.truncate(self._line_cells, overflow="ellipsis")
        yield line


def entry_lines(entries: Sequence[TapeEntry], line_cells: int | None) -> Iterator[Text]:
    """The lines of a whole tape; see EntryLines."""
    lines = EntryLines(len(str(entries[-1].id)) if entries else 0, line_cells)
    for entry in entries:
        yield from lines.of(entry)


def _moment(date: str) -> tuple[str, str]:
    """Day and time of an entry; a date that is none is shown as it stands."""
    try:
        moment = datetime.fromisoformat(date).astimezone(UTC)
    except ValueError:
        return "", one_line(date)
    return moment.date().isoformat(), moment.time().isoformat("milliseconds")


def moment_text(date: str) -> str:
    """An ISO date as day and time in UTC, to the second; one that is none as it stands."""
    day, time_of_day = _moment(date)
    return f"{day} {time_of_day.partition('.')[0]}".strip()


def ago(ms: int) -> str:
    """How long ago a moment was, in the largest unit that fits."""
    return seconds_text(time.time() - ms / 1000)


def seconds_text(seconds: float) -> str:
    """A duration in the largest unit that fits; none is below 0."""
    for unit, unit_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def summary(entry: TapeEntry) -> str:
    """What an entry says, on one line. Tapes may hold what others wrote, so nothing is taken for granted."""
    payload = entry.payload
    match entry.kind, payload:
        case "message", {"role": role}:
            said = entry.text or _json(payload.get("content"))
            return one_line(f"{role}: {said}")
        case "system", {"content": content}:
            return one_line(_plain(content))
        case "tool_call", {"calls": [*calls]}:
            said = f"{_plain(content)} " if (content := payload.get("content")) else ""
            return one_line(said + ", ".join(call_text(call) for call in calls))
        case "tool_result", {"results": [*results]}:
            return one_line(" · ".join(_plain(result) for result in results))
        case "anchor", {"name": name}:
            return one_line(f"{name} {pairs_text(payload.get('state'))}")
        case "event", {"name": name}:
            return one_line(f"{name} {pairs_text(payload.get('data'))}")
        case "error", {"kind": kind, "message": message}:
            return one_line(f"{kind}: {message}")
        case _:
            return one_line(_json(dict(payload)))


def call_text(call: Any) -> str:
    """A tool call as Python would write it: `order_status(order_id="A-1042")`."""
    match call:
        case {"name": name, "arguments": arguments}:
            return one_line(f"{name}({_arguments(arguments)})")
        case _:
            return one_line(_json(call))


def result_text(result: Any) -> str:
    """A tool's result on one line."""
    return one_line(_plain(result))


def _arguments(arguments: Any) -> str:
    if not arguments:
        return ""
    try:
        values = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return str(arguments)
    if not isinstance(values, Mapping):
        return str(arguments)
    return ", ".join(f"{name}={_json(value)}" for name, value in values.items())


def pairs_text(data: Any) -> str:
    """`name=value name=value`, without what is not there."""
    if not isinstance(data, Mapping):
        return "" if data is None else _json(data)
    return " ".join(f"{name}={_plain(value)}" for name, value in data.items() if value is not None)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
