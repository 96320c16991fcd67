"""What a turn's journal notes beside its entries while the agent works, and how the next attempt goes on from it."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from bub_redis import faults
from bub_redis.agent.events import (
    EventBus,
    LLMCallFinished,
    LLMCallStarted,
    RunStarted,
    ToolCallFinished,
    ToolCallStarted,
)
from bub_redis.agent.resume import Resume
from bub_redis.agent.steering import Steer
from bub_redis.errors import InvalidInput
from bub_redis.tape.entry import encode_json
from bub_redis.turns.durable import Note, TurnFork
from bub_redis.turns.outcome import used_steers
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.record import Turn

log = structlog.get_logger(__name__)


@dataclass
class Progress:
    """What the notes of earlier attempts say."""

    results: dict[str, Any] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    usage: Mapping[str, int] | None = None
    model: str | None = None
    state: Mapping[str, Any] | None = None
    steers: frozenset[str] = frozenset()
    """The ids of the steering messages that were used."""

    @classmethod
    def of(cls, notes: Sequence[Note]) -> "Progress":
        """Read the notes, in order."""
        progress = cls()
        for kind, data in notes:
            progress._read(kind, data)
        return progress

    def _read(self, kind: str, data: Mapping[str, Any]) -> None:
        match kind:
            case "response":
                self.usage, self.model = data["usage"], data["model"]
            case "call":
                self.started.add(data["key"])
            case "result":
                self.started.discard(data["key"])
                self.results[data["key"]] = data["result"]
            case "state":
                self.state = data["state"]
            case "steers":
                self.steers = frozenset(data["used"])

    @property
    def resume(self) -> Resume:
        """What the agent needs to go on."""
        return Resume(self.results, frozenset(self.started), self.usage, self.model, self.state)


class Journaling:
    """Handlers of one run that make each step durable: a response before its calls, each call before and after.

    And that begin nothing in a run that was told to stop, though user code swallowed its cancellation: what it would do
    is not journaled any more.
    """

    def __init__(self, fork: TurnFork, state: Mapping[str, Any]) -> None:
        self._fork = fork
        self._state = state
        self._noted_state = _encoded(state)

    def bus(self) -> EventBus:
        """What tells them the run's events. They do not hold it: a cycle would keep the turn's fork beyond its end."""
        bus = EventBus()
        bus.on(RunStarted, self._on_start)
        bus.on(LLMCallStarted, self._on_ask)
        bus.on(LLMCallFinished, self._on_response)
        bus.on(ToolCallStarted, self._on_call)
        bus.on(ToolCallFinished, self._on_result)
        return bus

    def _on_start(self, event: RunStarted) -> None:
        if event.resumed:
            # What an earlier attempt noted last, and this one may have to take back, is not the state it began with.
            self._noted_state = b""

    def _on_ask(self, _: LLMCallStarted) -> None:
        self._go_on()

    def _go_on(self) -> None:
        if self._fork.stopped():
            raise asyncio.CancelledError

    async def _on_response(self, event: LLMCallFinished) -> None:
        if event.result.error is None:
            usage = None if event.result.usage is None else dict(event.result.usage)
            self._fork.note("response", {"usage": usage, "model": event.request.model})
            await self._fork.flush()
            faults.point("after-response")

    async def _on_call(self, event: ToolCallStarted) -> None:
        self._go_on()
        if not event.decided:
            self._fork.note("call", {"key": event.call.context.idempotency_key})
            await self._fork.flush()
            faults.point("after-call")

    async def _on_result(self, event: ToolCallFinished) -> None:
        faults.point("before-result")
        self._fork.note("result", {"key": event.call.context.idempotency_key, "result": event.result})
        self._note_state()
        await self._fork.flush()
        faults.point("after-result")

    def _note_state(self) -> None:
        state = _encoded(self._state)
        if state == self._noted_state:
            return
        if state is None:
            log.warning("turn.state_not_json")
        else:
            self._fork.note("state", {"state": dict(self._state)})
        self._noted_state = state


def _encoded(state: Mapping[str, Any]) -> bytes | None:
    """The state as it is noted, with all that lies deeper; None for one that is no JSON.

    That is the application's own affair: such a state lives as long as the attempt.
    """
    try:
        return encode_json(dict(state), "the run's state")
    except InvalidInput:
        return None


class TurnInbox:
    """The steering messages of a turn, read from the queue side and told by their ids; none is taken away there."""

    def __init__(self, queue: TurnQueue, turn: Turn, fork: TurnFork, used: Iterable[str]) -> None:
        self._queue = queue
        self._turn = turn
        self._fork = fork
        self._noted = set(used)
        self._given: list[Steer] = []

    async def waiting(self) -> Sequence[Steer]:
        """The messages that were neither used yet nor cancelled, in order. Raises Outage."""
        sent, used = await self._queue.open_steers(self._turn), self.used
        self._given = [steer for steer in sent if steer.id not in used]
        return self._given

    async def taken(self, count: int) -> None:
        """Note that the first `count` of them are recorded: the journal says which, and the receipt how many."""
        self._noted |= {str(steer.id) for steer in self._given[:count]}
        self._fork.note("steers", {"used": sorted(self._noted)})

    @property
    def used(self) -> set[str]:
        """Which stand in the turn's block.

        The entries themselves say so, also where the run ended between the record and its note; the notes do where
        the turn reset its own tape.
        """
        return self._noted | used_steers(self._fork.entries)
