"""What is known of a tape without reading it whole: counts, newest anchors, last token usage."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bub_redis.tape.entry import TapeEntry

CHARS_PER_TOKEN = 4
"""The estimate for what no provider has counted yet."""


@dataclass(frozen=True)
class TapeInfo:
    """A tape in numbers, with Bub's fields."""

    name: str
    entries: int
    anchors: int
    """How many anchors have a name (case 87)."""
    last_anchor: str | None
    entries_since_last_anchor: int
    """Counted by position, not by number (case 41); all entries where there is no anchor."""
    last_token_usage: int | None
    """All tokens of the last model call that told them, wherever it stands on the tape (case 41); None if none did."""
    last_token_cache_hit_rate: float | None
    """Which part of that call's input came from the provider's cache, 0.0 to 1.0; None where it is not told."""


@dataclass(frozen=True)
class AnchorSummary:
    """An anchor by name and state."""

    name: str
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Outline:
    """A tape's counts and landmarks as of one moment."""

    entries: int = 0
    anchors: int = 0
    since_anchor: int = 0
    """Entries behind the last anchor; all where there is none."""
    newest_anchors: Sequence[TapeEntry] = ()
    """In order, the last anchor last: as many as were asked for."""
    usage: TapeEntry | None = None
    """The last `run` event that tells token usage."""

    def followed_by(self, later: "Outline", anchors: int) -> "Outline":
        """The outline of both tapes as one, with up to `anchors` newest anchors."""
        newest = [*self.newest_anchors, *later.newest_anchors]
        return Outline(
            entries=self.entries + later.entries,
            anchors=self.anchors + later.anchors,
            since_anchor=later.since_anchor if later.anchors else self.since_anchor + later.entries,
            newest_anchors=newest[max(0, len(newest) - anchors) :],
            usage=later.usage or self.usage,
        )

    def info(self, name: str) -> TapeInfo:
        """The same as numbers. The outline must hold at least one anchor if the tape has any."""
        usage = {} if self.usage is None else told_usage(self.usage) or {}
        given, cached = usage.get("input_tokens"), usage.get("cached_tokens")
        return TapeInfo(
            name=name,
            entries=self.entries,
            anchors=self.anchors,
            last_anchor=self.newest_anchors[-1].anchor_name if self.newest_anchors else None,
            entries_since_last_anchor=self.since_anchor,
            last_token_usage=usage.get("total_tokens"),
            last_token_cache_hit_rate=None if not given or cached is None else cached / given,
        )

    def summaries(self) -> list[AnchorSummary]:
        """The newest anchors, in order."""
        return [AnchorSummary(entry.anchor_name or "", _state(entry)) for entry in self.newest_anchors]


def outlined(entries: Iterable[TapeEntry], anchors: int) -> Outline:
    """The outline of a tape that holds `entries`, read once, with up to `anchors` newest anchors."""
    count = named = behind = 0
    newest: deque[TapeEntry] = deque(maxlen=anchors)
    usage: TapeEntry | None = None
    for entry in entries:
        count, behind = count + 1, behind + 1
        if entry.anchor_name is not None:
            named, behind = named + 1, 0
            newest.append(entry)
        elif told_usage(entry) is not None:
            usage = entry
    return Outline(count, named, behind, tuple(newest), usage)


def told_counts(entry: TapeEntry) -> dict[str, int]:
    """The token counts that a `run` event tells; none for other entries.

    Counts that are null or booleans are left out (case 19): a missing usage is not 0 (case 17).
    """
    if entry.kind != "event" or entry.payload.get("name") != "run":
        return {}
    data = entry.payload.get("data")
    usage = data.get("usage") if isinstance(data, Mapping) else None
    return {key: value for key, value in usage.items() if type(value) is int} if isinstance(usage, Mapping) else {}


def told_usage(entry: TapeEntry) -> dict[str, int] | None:
    """The token counts of a `run` event; None for other entries and where no plain `total_tokens` is told."""
    counts = told_counts(entry)
    return counts if "total_tokens" in counts else None


def usage_place(entries: Sequence[TapeEntry]) -> int:
    """The place, from 0, of the last entry that tells token usage; -1 without one."""
    return max((place for place, entry in enumerate(entries) if told_usage(entry) is not None), default=-1)


def _state(entry: TapeEntry) -> Mapping[str, Any]:
    state = entry.payload.get("state")
    return state if isinstance(state, Mapping) else {}
