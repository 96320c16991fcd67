"""Steering: messages for a run that is under way, which enter before its next model call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import republic

from bub_redis.agent.prompt import Prompt, prompt_parts
from bub_redis.tape import TapeEntry


@dataclass(frozen=True)
class Steer:
    """One message for a run that is under way."""

    prompt: Prompt
    id: str | None = None
    """The sender's, recorded in the meta of its entry: `steer`."""

    @property
    def message(self) -> republic.Message:
        """As the model reads it. Raises InvalidInput if it says nothing."""
        return republic.user(*prompt_parts(self.prompt))


class Inbox(Protocol):
    """Where messages for one run wait. Reading takes nothing away: a message is taken when it is on the tape (129)."""

    async def waiting(self) -> Sequence[Steer]:
        """The messages that were not taken yet, in the order of their arrival. Raises what ends the run."""
        ...

    async def taken(self, count: int) -> None:
        """The first `count` of what `waiting` last gave are recorded; they are not given again."""
        ...


class MemoryInbox:
    """An inbox in this process: `put` a message, and the run that was given the inbox reads it."""

    def __init__(self) -> None:
        self._steers: list[Steer] = []

    def put(self, prompt: Prompt, *, id: str | None = None) -> None:
        """Add a message. Raises InvalidInput if it says nothing."""
        prompt_parts(prompt)
        self._steers.append(Steer(prompt, id))

    async def waiting(self) -> Sequence[Steer]:
        """What was put and not taken yet. A run that ended leaves its rest here."""
        return tuple(self._steers)

    async def taken(self, count: int) -> None:
        """Forget the first `count` messages."""
        del self._steers[:count]


def steer_entry(steer: Steer, **meta: Any) -> TapeEntry:
    """A steering message as an entry; its meta names it by the sender's id, or says `true` where there is none."""
    return TapeEntry.message(steer.message.to_dict(), **meta, steer=True if steer.id is None else steer.id)
