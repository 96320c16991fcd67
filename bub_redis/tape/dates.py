"""Periods of time as queries state them. What counts is an entry's `date`: when the fact happened, not when it was
committed."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from bub_redis.errors import InvalidInput


@dataclass(frozen=True)
class Period:
    """From one moment to another, both included."""

    start: datetime
    end: datetime

    @classmethod
    def between(cls, start: str, end: str) -> "Period":
        """The period between two ISO 8601 texts.

        A date without a time means its whole day in UTC, a time without an offset is UTC, other offsets are
        converted. Raises InvalidInput for a text that is neither, and where the start is later than the end.
        """
        period = cls(_bound(start, time.min), _bound(end, time.max))
        if period.start > period.end:
            raise InvalidInput(f"a period that starts at {start!r} cannot end at {end!r}")
        return period

    def holds(self, text: str) -> bool:
        """Whether an entry with this date lies in the period; an entry whose date cannot be read lies in none."""
        try:
            return self.start <= _bound(text, time.min) <= self.end
        except InvalidInput:
            return False


def iso_text(moment: str | date) -> str:
    """A bound as text: dates and datetimes in ISO 8601, texts as they are."""
    return moment.isoformat() if isinstance(moment, date) else moment


def _bound(text: str, time_of_day: time) -> datetime:
    try:
        if "T" not in text and " " not in text:
            return datetime.combine(date.fromisoformat(text), time_of_day, tzinfo=UTC)
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{text!r} is no ISO 8601 date or time, such as 2026-01-31 or 2026-01-31T12:00Z") from None
