"""Sidecars: sibling tapes that are forked, merged, archived and reset with their owner, and never read for context."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.names import SIDECAR_MARKER, check_sidecar_name, check_tape_name


@dataclass(frozen=True)
class TapeSidecar:
    """A tape beside each tape that mounts it, `<tape>__sidecar__<name>`. By itself it intercepts nothing.

    Names have 1 to 32 of `a-z 0-9 _ -` and begin with a letter. Raises InvalidInput for others.
    """

    name: str

    def __post_init__(self) -> None:
        check_sidecar_name(self.name)


def sidecar_tape_name(owner: str, sidecar: str) -> str:
    """The name of the tape of a sidecar. Raises InvalidInput for names that cannot be."""
    return check_tape_name(f"{owner}{SIDECAR_MARKER}{sidecar}")


def reset_event(sidecar: str, status: Literal["ok", "error", "skipped"], reason: str, **details: str) -> TapeEntry:
    """The event that tells what became of a sidecar when it, or its owner, was reset. No model sees it."""
    data = {"sidecar": sidecar, "status": status, "reason": reason, **details}
    return TapeEntry.event("sidecar.reset", data, context=False)


def reset_events(tapes: Sequence[str], unfit: Mapping[str, str]) -> list[TapeEntry]:
    """One event for each sidecar that was reset with its owner; `unfit` says why some were not."""
    events = []
    for tape in tapes:
        name = tape.partition(SIDECAR_MARKER)[2]
        error = unfit.get(tape)
        if error is None:
            events.append(reset_event(name, "ok", "tape.reset"))
        else:
            events.append(reset_event(name, "error", "tape.reset", error=error))
    return events
