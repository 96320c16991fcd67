"""What a store holds and cannot read: left out of every answer, counted, and told once for each tape."""

from collections import defaultdict

import structlog

_log = structlog.get_logger(__name__)


class Damage:
    """The unreadable records that a store met: hand-made, cut short by a crash, or no longer what was written."""

    def __init__(self) -> None:
        self._places: defaultdict[str, set[str]] = defaultdict(set)

    def note(self, tape: str, place: str, reason: str) -> None:
        """Remember a record that was left out. The first one of each tape is logged; a repeat changes nothing."""
        known = self._places[tape]
        if not known:
            _log.warning("tape.damaged", tape=tape, place=place, reason=reason)
        known.add(place)

    def count(self, tape: str) -> int:
        """How many unreadable records of the tape were met so far."""
        return len(self._places.get(tape, ()))
