"""Timing: ours and the reference in turn, round after round, so that what disturbs one disturbs the other too."""

import gc
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

Side = Callable[[], Awaitable[float]]
"""One round of one side; what it measured."""


@dataclass(frozen=True)
class Series:
    """Measured values of one kind."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The smallest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest value."""
        return max(self.values)

    def percentile(self, share: int) -> float:
        """The value that `share` percent of the values do not exceed."""
        return sorted(self.values)[max(0, math.ceil(len(self.values) * share / 100) - 1)]

    def over(self, other: "Series") -> float:
        """The median of the ratios, round by round."""
        return statistics.median(mine / theirs for mine, theirs in zip(self.values, other.values, strict=True))


async def alternate(rounds: int, *sides: Side) -> list[Series]:
    """Run the sides in turn, `rounds` times, each round in the other order; the values of each side.

    A first round of all sides is not counted: connections open and caches fill in it.
    """
    found: list[list[float]] = [[] for _ in sides]
    for side in sides:
        await side()
    for number in range(rounds):
        order = range(len(sides)) if number % 2 == 0 else reversed(range(len(sides)))
        for place in order:
            # What one side left behind is not collected in the other one's time.
            gc.collect()
            found[place].append(await sides[place]())
    return [Series(tuple(values)) for values in found]


class Watch:
    """Adds up what passes inside `with watch():`, for rounds whose preparation does not count."""

    def __init__(self) -> None:
        self.laps_s: list[float] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Time one lap."""
        began = time.perf_counter()
        yield
        self.laps_s.append(time.perf_counter() - began)

    @property
    def total_s(self) -> float:
        """All laps together."""
        return sum(self.laps_s)


def series(values: Sequence[float]) -> Series:
    """The values as a series."""
    return Series(tuple(values))
