"""How large a context is, from what the provider last told and what came since; and a budget to hold it to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bub_redis.errors import InvalidInput
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.info import CHARS_PER_TOKEN, told_counts

_SHOWN_KINDS = frozenset({"message", "tool_call", "tool_result"})


@dataclass(frozen=True)
class ContextSize:
    """The size of the context that starts after the last anchor."""

    usage: Mapping[str, int] | None
    """Tokens of the last model call since the anchor. Older ones counted another context (case 131)."""
    tail: Sequence[TapeEntry]
    """The entries after that call; all entries since the anchor if no call told its usage."""
    finish_reason: str | None = None
    """Why the last answer ended, right after it; None before a call."""

    @classmethod
    def of(cls, entries: Sequence[TapeEntry], finish_reason: str | None = None) -> "ContextSize":
        """The size of a context made of these entries, those since the last anchor."""
        for place in range(len(entries) - 1, -1, -1):
            counts = told_counts(entries[place])
            if "input_tokens" in counts:
                return cls(counts, entries[place + 1 :], finish_reason)
        return cls(None, entries, finish_reason)

    @property
    def tokens(self) -> int:
        """What the next call sends, estimated: input and output of the last one, and the text that came since."""
        told = 0 if self.usage is None else self.usage["input_tokens"] + self.usage.get("output_tokens", 0)
        chars = sum(
            len(json.dumps(entry.payload, ensure_ascii=False))
            for entry in self.tail
            if entry.kind in _SHOWN_KINDS and entry.meta.get("context") is not False
        )
        return told + chars // CHARS_PER_TOKEN


async def context_size(tape: Tape) -> ContextSize:
    """Measure a tape's context in one read, of the entries since its last anchor. Raises Outage."""
    return ContextSize.of(await tape.context.entries(tape.query()))


@dataclass(frozen=True)
class Budget:
    """Hand off before the model refuses: `Agent(budget=Budget(200_000))` (case 16)."""

    max_tokens: int
    """The model's window."""
    reserve_tokens: int = 16_384
    """What of it is kept for the answer."""

    def __post_init__(self) -> None:
        if not 0 <= self.reserve_tokens < self.max_tokens:
            raise InvalidInput(
                f"a reserve of {self.reserve_tokens} tokens leaves nothing of a budget of {self.max_tokens}"
            )

    def is_exceeded(self, size: ContextSize) -> bool:
        """Whether the context leaves less than the reserve."""
        return size.tokens > self.max_tokens - self.reserve_tokens
