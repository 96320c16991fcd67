"""Entries and calls as a person reads them: one line each."""

import json
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


def entry_lines(entries: Sequence[TapeEntry], line_cells: int | None) -> Iterator[Text]:
    """A line for each entry: number, time (UTC), kind, what it says; cut to `line_cells`, and one for each new day."""
    number_cells = len(str(entries[-1].id)) if entries else 0
    shown_day = ""
    for entry in entries:
        day, time = _moment(entry.date)
        if day != shown_day:
            shown_day = day
            yield Text(f"{day} UTC", style="dim")
        style = _STYLES.get(entry.kind, "dim")
        line = Text.assemble(
            (f"{entry.id:>{number_cells}}  {time}  ", "dim"),
            (f"{one_line(entry.kind):<{_KIND_CELLS}}  ", style),
            (summary(entry), "dim" if style == "dim" else ""),
        )
        if line_cells is not None:
            line.truncate(line_cells, overflow="ellipsis")
        yield line


def _moment(date: str) -> tuple[str, str]:
    """Day and time of an entry; a date that is none is shown as it stands."""
    try:
        moment = datetime.fromisoformat(date).astimezone(UTC)
    except ValueError:
        return "", one_line(date)
    return moment.date().isoformat(), moment.time().isoformat("milliseconds")


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
            return one_line(f"{name} {_pairs(payload.get('state'))}")
        case "event", {"name": name}:
            return one_line(f"{name} {_pairs(payload.get('data'))}")
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
    try:
        values = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError:
        return str(arguments)
    if not isinstance(values, Mapping):
        return str(arguments)
    return ", ".join(f"{name}={_json(value)}" for name, value in values.items())


def _pairs(data: Any) -> str:
    """`name=value name=value`, without what is not there."""
    if not isinstance(data, Mapping):
        return "" if data is None else _json(data)
    return " ".join(f"{name}={_plain(value)}" for name, value in data.items() if value is not None)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
