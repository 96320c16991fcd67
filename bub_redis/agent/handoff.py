"""The automatic handoff: a new context for the same prompt, when the old one is larger than the model takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import republic

from bub_redis.agent.steering import Steer, steer_entry
from bub_redis.errors import ContextOverflow
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.fork import Fork
from bub_redis.tape.tape import handoff_entries

MAX_AUTO_HANDOFF_RETRIES = 1
"""How often a run hands off by itself: a prompt that is too large alone would do it for ever (cases 130 and 132)."""

REFUSED = "context_length_exceeded"
OVER_BUDGET = "context_budget"
ANCHORS = {REFUSED: "auto_handoff/context_overflow", OVER_BUDGET: "auto_handoff/context_budget"}
"""The anchor for each reason. The first is Bub's."""


@dataclass
class Said:
    """What a run was told: its prompt and the steering messages it took. A new context begins with all of it."""

    run_id: str
    prompt: republic.Message | None
    """None for an exchange that goes on with the conversation."""
    steers: list[Steer] = field(default_factory=list)

    def __len__(self) -> int:
        return (self.prompt is not None) + len(self.steers)

    def again(self) -> list[TapeEntry]:
        """The messages once more, marked as such: a view that shows the first ones does not show these."""
        meta = {"run_id": self.run_id, "retry_of": self.run_id}
        prompt = [] if self.prompt is None else [TapeEntry.message(self.prompt.to_dict(), **meta)]
        return [*prompt, *(steer_entry(steer, **meta) for steer in self.steers)]

    def is_in(self, entries: Sequence[TapeEntry]) -> bool:
        """Whether any of it, first or again, stands among the entries."""
        return len(self) == 0 or any(
            entry.kind == "message"
            and entry.meta.get("run_id") == self.run_id
            and entry.payload.get("role") == "user"
            and "summary_of" not in entry.meta
            for entry in reversed(entries)
        )


@dataclass(frozen=True)
class Handoff:
    """A handoff of the loop, before it is written."""

    name: str
    """The anchor's."""
    state: Mapping[str, Any]

    @classmethod
    def automatic(cls, reason: str, error: ContextOverflow | None = None) -> "Handoff":
        """The one that an overflow, or the budget, leads to: state `{"reason", "error"?}`."""
        state = {"reason": reason} | ({} if error is None else {"error": str(error)})
        return cls(ANCHORS[reason], state)

    @property
    def data(self) -> dict[str, Any]:
        """What anchor and event hold."""
        return {"name": self.name, "state": dict(self.state)}

    async def write(self, tape: Tape, said: Said, left: Sequence[TapeEntry], summary: str | None) -> None:
        """Begin a new context with what the run was told in it, all or nothing.

        One unit of anchor, event, the summary of the entries that are `left` behind if there is one, and the messages
        again.
        """
        entries = handoff_entries(self.name, self.state, run_id=said.run_id)
        if summary:
            meta = {"run_id": said.run_id, "summary_of": _places(tape, left, len(entries) + 1)}
            entries.append(TapeEntry.message(republic.user(summary).to_dict(), **meta))
        await tape.append(*entries, *said.again())


def _places(tape: Tape, entries: Sequence[TapeEntry], distance: int) -> list[int]:
    """The first and the last of `entries` as an entry that comes `distance` after the last may name them.

    Those of the parent by number; those of the same block, whose numbers only the merge knows, by how far back.
    """
    if not entries:
        return []
    overlay = tape.store.entries if isinstance(tape.store, Fork) else []
    provisional = overlay[0].id if overlay else None
    own = entries[-1].id + distance
    return [
        entry.id if provisional is None or entry.id < provisional else entry.id - own
        for entry in (entries[0], entries[-1])
    ]
