"""A row of the table: what was measured, what stands beside it, and whether the target is met."""

from dataclasses import dataclass

from benchmarks.measure import Series

NOTHING = "–"


@dataclass(frozen=True)
class Row:
    """One line of the table, as text."""

    what: str
    ours: str
    reference: str = NOTHING
    ratio: str = NOTHING
    target: str = "shown"
    met: bool | None = None
    """Whether the target is met; None for a row that is only shown."""


@dataclass(frozen=True)
class Skipped:
    """A row that cannot be measured on this machine, and why."""

    what: str
    reason: str


def rate(values: Series, unit: str = "/s") -> str:
    """How much per second: the median, and the range over the rounds."""
    return f"{values.median:,.0f}{unit} ({values.low:,.0f}–{values.high:,.0f})"


def times(values: Series, *percentiles: int) -> str:
    """Durations in ms: the median, other percentiles, and the longest."""
    parts = [f"p50 {_ms(values.median)}", *(f"p{share} {_ms(values.percentile(share))}" for share in percentiles)]
    return f"{', '.join(parts)}, longest {_ms(values.high)}"


def ratio(value: float) -> str:
    """A ratio as a factor."""
    return f"{value:.2f} ×"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.2f} ms"
