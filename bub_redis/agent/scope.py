"""What the parts of one run share: its tape, its agent's components, and what it was told so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import republic

from bub_redis.agent.asking import Models
from bub_redis.agent.events import EventBus, RunEvents
from bub_redis.agent.handoff import MAX_AUTO_HANDOFF_RETRIES, Handoff, Said
from bub_redis.agent.hooks import Hooks, Overflow
from bub_redis.agent.prompt import SystemPrompt
from bub_redis.agent.resume import Resume, RunRecord
from bub_redis.agent.steering import Inbox
from bub_redis.errors import ContextOverflow
from bub_redis.tape import LAST_ANCHOR, Tape, TapeEntry

RESET_NOTE = "The tape was reset, as you asked. What was said before is gone."
"""What a model reads after its own reset: it would do it again, and again."""


@dataclass
class Scope:
    """One run on one open tape."""

    tape: Tape
    run_id: str
    events: RunEvents
    spilling: EventBus
    """What keeps large results out of the tape: told after the agent's handlers, before the run's own."""
    hooks: Hooks
    system_prompt: SystemPrompt
    models: Models
    options: Mapping[str, Any]
    said: Said
    max_tool_concurrency: int | None
    max_result_bytes: int
    inbox: Inbox | None = None
    resume: Resume = field(default_factory=Resume)
    handoffs: int = 0
    """How many handoffs the run made by itself, those of earlier attempts included."""
    used_system_prompt: str | None = None
    """The last one that was recorded."""

    @property
    def where(self) -> dict[str, Any]:
        """What every event of the run carries."""
        return {"tape": self.tape, "run_id": self.run_id}

    def go_on(self, resume: Resume, record: RunRecord) -> None:
        """Know what an earlier attempt knew."""
        self.resume = resume
        self.said.steers += record.steers
        self.handoffs = record.handoffs
        self.used_system_prompt = record.system_prompt
        if resume.state is not None:
            self.tape.context.state.clear()
            self.tape.context.state.update(resume.state)

    def lost_prompt(self, entries: Sequence[TapeEntry]) -> bool:
        """Whether someone's handoff in the middle of the run left its prompt behind: no model answers nobody."""
        return self.tape.context.anchor is LAST_ANCHOR and not self.said.is_in(entries)

    def may_hand_off(self, messages: int) -> bool:
        """Whether a handoff would help a view of so many messages.

        The run must have one left, its context must follow anchors, and the view must show more than what the run was
        told: a new context would begin with just that.
        """
        left = self.handoffs < MAX_AUTO_HANDOFF_RETRIES
        return left and self.tape.context.anchor is LAST_ANCHOR and messages > len(self.said)

    async def hand_off(self, reason: str, error: ContextOverflow | None = None) -> Handoff:
        """Begin a new context by itself, which counts as the run's one handoff, and ask the hook for a summary."""
        self.handoffs += 1
        handoff = Handoff.automatic(reason, error)
        left = await self.tape.context.entries(self.tape.query())
        summary = await self.hooks.on_overflow(self.tape, Overflow(reason, error, left))
        await handoff.write(self.tape, self.said, left, summary)
        return handoff

    async def grant_handoff(self, wish: Mapping[str, Any]) -> Handoff:
        """Begin the new context that a tool asked for, with its summary in it."""
        name = str(wish["anchor"])
        summary = str(wish.get("summary") or "")
        handoff = Handoff(name, {"summary": summary})
        left = await self.tape.context.entries(self.tape.query())
        await handoff.write(self.tape, self.said, left, summary or f"What was said before was handed off to {name}.")
        return handoff

    async def grant_reset(self, step: int) -> None:
        """Reset the tape as a tool asked for, and let the run go on from what it was told."""
        meta = {"run_id": self.run_id}
        await self.tape.reset()
        await self.tape.append(
            TapeEntry.event("loop.step.start", {"step": step, "prompt": None}, **meta),
            TapeEntry.message(republic.user(RESET_NOTE).to_dict(), **meta, summary_of=[]),
            *self.said.again(),
        )
        self.used_system_prompt = None
