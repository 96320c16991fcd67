"""The demo's last word: what was checked on the tapes, in a short table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from bub_redis.cli.demo.audit import SessionAudit
from bub_redis.cli.demo.cast import Line
from bub_redis.cli.output import Terminal


@dataclass(frozen=True)
class Recovery:
    """A worker that was killed in the middle of a turn, and what became of the turn."""

    line: Line
    killed: bool
    """Whether the worker was killed before the turn had ended."""
    running_again_s: float | None
    """From the kill until the turn ran elsewhere; None if it never did."""


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    what: str
    found: str
    holds: bool


def checks(audits: Sequence[SessionAudit], recovery: Recovery, first_text_s: float | None) -> list[Check]:
    """Everything that must hold, with what was found."""
    receipts = sum(len(audit.receipts) for audit in audits)
    calls = sum(audit.calls for audit in audits)
    half_pairs = sum(audit.half_pairs for audit in audits)
    broken = sum(audit.broken_receipts for audit in audits)
    once = all(audit.each_once for audit in audits)
    in_order = [audit for audit in audits if audit.in_order]
    return [
        Check("turns", f"{receipts}, {'each on its tape once' if once else 'NOT each on its tape once'}", once),
        Check("sessions", f"{len(audits)}, a tape each", all(audit.entries for audit in audits)),
        Check(
            "entries",
            f"{sum(len(audit.entries) for audit in audits)}: {_count(calls, 'tool call')}, "
            f"{_count(half_pairs, 'half pair')}, {_count(broken, 'broken digest')}",
            half_pairs == 0 and broken == 0,
        ),
        Check("order kept", f"in {len(in_order)} of {len(audits)} sessions", len(in_order) == len(audits)),
        _recovered(audits, recovery),
        Check(
            "time to first text",
            "no text came" if first_text_s is None else f"{first_text_s * 1000:.0f} ms after the enqueue",
            first_text_s is not None,
        ),
    ]


def _recovered(audits: Iterable[SessionAudit], recovery: Recovery) -> Check:
    line = recovery.line
    attempt = next(audit.attempt(line.turn_id) for audit in audits if line in audit.lines)
    if not recovery.killed:
        return Check("recovered turn", "none: it ended before its worker could be killed", False)
    if recovery.running_again_s is None or attempt is None:
        return Check("recovered turn", "no", False)
    found = f"yes, running again after {recovery.running_again_s:.1f} s, as attempt {attempt}"
    return Check("recovered turn", found, attempt > 1)


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def show(terminal: Terminal, rows: Sequence[Check]) -> None:
    """Print the table."""
    table = Table(box=box.ROUNDED, show_header=False, border_style="dim")
    for row in rows:
        mark = Text("✓", "green") if row.holds else Text("✗", "bold red")
        table.add_row(Text(row.what, "bold"), row.found, mark)
    terminal.print(table)
