"""The table, on the terminal and in benchmarks/README.md, and what it was measured on."""

import os
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.reference import versions
from benchmarks.rows import NOTHING, Row, Skipped

README = Path(__file__).resolve().parent / "README.md"
_FIGURES = re.compile(r"(<!-- figures -->\n).*(<!-- end of figures -->)", re.DOTALL)
_HEADER = ("what", "ours", "reference", "ratio", "target", "")
_MET = {True: "met", False: "**missed**", None: ""}


def line(row: Row | Skipped) -> str:
    """A row as a short text, for somebody who watches."""
    if isinstance(row, Skipped):
        return f"{row.what}: skipped, {row.reason}"
    parts = [
        *([] if row.ours == NOTHING else [row.ours]),
        *([] if row.reference == NOTHING else [f"beside {row.reference}"]),
        *([] if row.ratio == NOTHING else [row.ratio]),
        *([] if row.met is None else [f"target {row.target} {'met' if row.met else 'missed'}"]),
    ]
    return f"{row.what}: {'; '.join(parts)}"


def table(rows: list[Row | Skipped]) -> str:
    """All rows as a Markdown table, and a line for each that was skipped."""
    lines = [_line(_HEADER), _line(("---",) * len(_HEADER))]
    lines += [
        _line((row.what, row.ours, row.reference, row.ratio, row.target, _MET[row.met]))
        for row in rows
        if isinstance(row, Row)
    ]
    skipped = [f"Skipped: {row.what}: {row.reason}." for row in rows if isinstance(row, Skipped)]
    return "\n".join([*lines, *([""] if skipped else []), *skipped])


def machine(folder: Path, server: str) -> str:
    """What the figures were taken on."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("bub-redis", "redis", "hiredis", "arq", "republic"))
    references = "; ".join(versions(folder).values()) or "none installed"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC · {server}, appendonly yes, appendfsync everysec, unix socket · "
        f"Python {platform.python_version()} · {os.cpu_count()} cores ({_processor()}), {platform.system()} "
        f"{platform.machine()} · load {load} · ours: {packages} · references: {references}"
    )


def write(text: str) -> None:
    """Put the figures between the markers of the README."""
    page = README.read_text(encoding="utf-8")
    README.write_text(_FIGURES.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page), encoding="utf-8")


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _processor() -> str:
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", described, re.MULTILINE)
    return found[1].strip() if found else platform.processor()
