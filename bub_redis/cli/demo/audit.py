"""What the tapes say of the demo. Only entries count here: no counter, and nothing that a frame said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from bub_redis.cli.demo.cast import Line
from bub_redis.tape import TapeEntry
from bub_redis.tape.receipt import RECEIPT_EVENT, broken_receipts


@dataclass(frozen=True)
class SessionAudit:
    """One session's tape, beside what was sent to it in order."""

    lines: Sequence[Line]
    entries: Sequence[TapeEntry]

    @property
    def receipts(self) -> list[Mapping[str, Any]]:
        """What each receipt on the tape says, in order."""
        return [
            entry.payload["data"]
            for entry in self.entries
            if entry.kind == "event" and entry.payload["name"] == RECEIPT_EVENT
        ]

    @property
    def each_once(self) -> bool:
        """Whether every turn completed and stands there once, with its prompt, and no other one."""
        completed = sorted(receipt["turn"] for receipt in self.receipts if receipt["status"] == "completed")
        return (
            completed == sorted(line.turn_id for line in self.lines)
            and len(self.receipts) == len(self.lines)
            and sorted(self._prompts) == sorted(line.prompt for line in self.lines)
        )

    @property
    def in_order(self) -> bool:
        """Whether prompts and receipts stand there in the order in which the turns were sent."""
        return (
            [receipt["turn"] for receipt in self.receipts] == [line.turn_id for line in self.lines]
            and self._prompts == [line.prompt for line in self.lines]
            and [entry.id for entry in self.entries] == list(range(1, len(self.entries) + 1))
        )

    @property
    def half_pairs(self) -> int:
        """How many calls stand there without their result, and results without their call."""
        halves = 0
        waiting: list[str] = []
        for entry in self.entries:
            match entry.kind, entry.payload:
                case "tool_call", {"calls": calls}:
                    halves += len(waiting)
                    waiting = [call["id"] for call in calls]
                case "tool_result", {"call_ids": ids}:
                    halves += len(set(ids) ^ set(waiting))
                    waiting = []
        return halves + len(waiting)

    @property
    def broken_receipts(self) -> int:
        """How many receipts do not fit what stands before them."""
        return len(broken_receipts(self.entries))

    @property
    def calls(self) -> int:
        """How many tool calls stand there."""
        return sum(len(entry.payload["calls"]) for entry in self.entries if entry.kind == "tool_call")

    @property
    def _prompts(self) -> list[str]:
        return [entry.text for entry in self.entries if entry.payload.get("role") == "user"]

    def attempt(self, turn_id: str) -> int | None:
        """Which attempt put the turn on the tape; None if it is not there."""
        return next((receipt["attempt"] for receipt in self.receipts if receipt["turn"] == turn_id), None)


def by_session(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Lines by session, in the order in which they were sent."""
    ordered = sorted(lines, key=lambda line: line.session)
    return {session: list(own) for session, own in groupby(ordered, key=lambda line: line.session)}
