"""What a subclass of Agent may decide in a run. Each hook gets the run's tape, and what it raises ends the run."""

from collections.abc import Sequence
from dataclasses import dataclass

from bub_redis.agent.budget import ContextSize
from bub_redis.agent.prompt import Prompt, UserContent
from bub_redis.agent.tools import Tool
from bub_redis.errors import ContextOverflow
from bub_redis.tape import Tape, TapeEntry


@dataclass(frozen=True)
class Overflow:
    """Why a context is left behind, and what of it the next one will not show."""

    reason: str
    """`context_length_exceeded` if the model refused; `context_budget` if `over_budget` asked for it."""
    error: ContextOverflow | None
    entries: Sequence[TapeEntry]
    """The entries since the last anchor, the run's own included."""


class Hooks:
    """The defaults of what a run asks its agent; override them in a subclass of Agent."""

    async def prepare_tools(self, tape: Tape, prompt: Sequence[UserContent] | None) -> Sequence[Tool]:
        """The tools of the next model call. Asked once a step; `prompt` is None when the conversation goes on."""
        raise NotImplementedError

    async def pending_messages(self, tape: Tape) -> Sequence[Prompt]:
        """User messages that arrived meanwhile, for the next model call. They are the run's once they are returned.

        An Inbox does the same for messages that must not be lost between being read and being recorded.
        """
        return ()

    async def has_pending_messages(self, tape: Tape) -> bool:
        """Whether messages wait: then the run goes on after an answer."""
        return False

    async def continue_prompt(self, tape: Tape, prompt: Sequence[UserContent] | None) -> Prompt | None:
        """A user message for the next step; None goes on with the conversation. `prompt` is the last step's."""
        return None

    async def over_budget(self, tape: Tape, size: ContextSize) -> bool:
        """Whether to hand off now, before the model refuses (cases 16 and 208).

        Asked before each model call, and after an answer that says nothing at all, which is how some providers refuse.
        A run hands off at most once, whoever asks for it.
        """
        return False

    async def on_overflow(self, tape: Tape, overflow: Overflow) -> str | None:
        """A summary of what the next context does not show: it becomes the first message behind the anchor.

        Called once, before the handoff is written. The agent makes no model call for it (case 132).
        """
        return None
