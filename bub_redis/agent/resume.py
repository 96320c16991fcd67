"""Going on with a run whose attempt died: what is on its tape already, and what only its journal knows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import republic

from bub_redis.agent.events import RunStatus, StepStatus
from bub_redis.agent.handoff import ANCHORS
from bub_redis.agent.prompt import UserContent
from bub_redis.agent.steering import Steer
from bub_redis.agent.stream import StreamEvent, told_answer
from bub_redis.errors import Action, BubError, ContextOverflow, ErrorKind, InvalidInput, ModelError, NotFound
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.fork import Fork


@dataclass(frozen=True)
class Resume:
    """What a run needs besides its tape to go on where an attempt died: `agent.run_on(fork, prompt, resume=…)`.

    The fork's overlay must hold what that attempt appended, in order, each batch whole, and nothing that it appended
    after it was told to stop. Nothing that it holds is recorded again, no whole response is asked for again, and no
    call that has its result runs again; the tape becomes that of a run that nobody disturbed, apart from dates and
    durations. The stream begins with what it tells of the steps that are kept.
    """

    results: Mapping[str, Any] = field(default_factory=dict)
    """Idempotency key of a call → its result, as the last `ToolCallFinished` told it."""
    started: Collection[str] = ()
    """Idempotency keys of calls that began and have no result. Such a call may have done its work: it is answered as
    interrupted, unless its tool is idempotent, in which case it runs again with the same key."""
    usage: Mapping[str, int] | None = None
    """Tokens of the last response, as `LLMCallFinished` told them."""
    model: str | None = None
    """The `provider:model` of the last response, as `LLMCallFinished` told it."""
    state: Mapping[str, Any] | None = None
    """The run's state, which takes the place of what that of the tape's context holds; None where it never changed."""


@dataclass
class StepRecord:
    """What of one step is on the tape."""

    number: int
    prompt: Sequence[UserContent] | None = None
    entered: bool = False
    """Whether what the step adds to the conversation stands there."""
    message: republic.Message | None = None
    """The response."""
    call_ids: Sequence[str] = ()
    results: Sequence[Any] = ()
    error: BubError | None = None
    """How the model call failed."""
    over: bool = False
    """Whether the exchange with the model is: its `run` event stands there."""
    handed_off: bool = False
    """Whether the handoff after it is."""
    status: StepStatus | None = None
    """How it ended, once it did."""
    failure: str = ""
    """What it ended with, if that was an error."""
    steered: list[Any] = field(default_factory=list)
    """The contents of the steering messages that entered with it."""

    def told_again(self) -> list[StreamEvent]:
        """What was streamed of the step, as far as the tape keeps it."""
        told = [StreamEvent("step", {"step": self.number})]
        if self.steered:
            told.append(StreamEvent("steered", {"messages": self.steered}))
        if self.message is not None:
            told += told_answer(self.message)
        if self.call_ids:
            told.append(StreamEvent("tool_result", {"tool_results": [*self.results], "call_ids": [*self.call_ids]}))
        return told


@dataclass
class RunRecord:
    """What of one run is on the tape."""

    started: bool = False
    step: StepRecord | None = None
    """The last step that began."""
    earlier: list[StepRecord] = field(default_factory=list)
    """Those before it, in order."""
    system_prompt: str | None = None
    handoffs: int = 0
    steers: list[Steer] = field(default_factory=list)
    status: RunStatus | None = None
    """How it ended, once it did."""

    def told_again(self) -> list[StreamEvent]:
        """What was streamed of the steps that have ended: whoever heard it may have heard what was not kept, too."""
        last = [self.step] if self.step is not None and self.step.status is not None else []
        return [event for step in (*self.earlier, *last) for event in step.told_again()]

    @classmethod
    def of(cls, tape: Tape, run_id: str) -> "RunRecord":
        """Read what the fork's overlay holds of the run. Raises InvalidInput for a tape that is no fork."""
        if not isinstance(tape.store, Fork):
            raise InvalidInput("a run goes on only on a fork that holds what the run had appended")
        record = cls()
        for entry in tape.store.entries:
            if entry.meta.get("run_id") == run_id:
                record.started = True
                record._read(entry)
        return record

    def _read(self, entry: TapeEntry) -> None:
        data: Any = entry.payload.get("data")
        match entry.kind, entry.payload.get("name"):
            case "event", "loop.step.start":
                prompt = None if data["prompt"] is None else _content(data["prompt"])
                again = self.step is not None and self.step.status == "auto_handoff"
                self.earlier += [] if self.step is None else [self.step]
                self.step = StepRecord(data["step"], prompt, entered=again)
            case "event", "loop.finish":
                self.status = data["status"]
            case "anchor", name:
                self.handoffs += name in ANCHORS.values()
                if self.step is not None and self.step.over:
                    self.step.handed_off = True
            case "system", _:
                self.system_prompt = entry.payload["content"]
            case _ if self.step is not None:
                self._read_step(self.step, entry)

    def _read_step(self, step: StepRecord, entry: TapeEntry) -> None:
        payload = entry.payload
        match entry.kind, payload.get("name"):
            case "message", _ if payload["role"] == "assistant":
                step.message = republic.Message.from_dict(payload)
            case "message", _:
                step.entered = True
                if (steer := entry.meta.get("steer")) and "retry_of" not in entry.meta:
                    step.steered.append(payload["content"])
                    self.steers.append(Steer(_content(payload["content"]), None if steer is True else steer))
            case "tool_call", _:
                step.message = _asking_message(payload)
            case "tool_result", _:
                step.call_ids, step.results = payload["call_ids"], payload["results"]
            case "error", _:
                step.error = _error(payload["kind"], payload["message"])
            case "event", "run":
                step.over = True
            case "event", "loop.step":
                step.status = payload["data"]["status"]
                step.failure = payload["data"].get("error", "")


def _content(content: Any) -> tuple[UserContent, ...]:
    """A prompt as it was recorded, back as its parts."""
    parts = republic.Message.from_dict({"role": "user", "content": content}).parts
    return tuple(
        part.text if isinstance(part, republic.Text) else part
        for part in parts
        if isinstance(part, republic.Text | republic.Image | republic.Audio | republic.Video)
    )


def _asking_message(payload: Mapping[str, Any]) -> republic.Message:
    """The response that a `tool_call` entry holds, as the model gave it."""
    told = {"role": "assistant", "content": payload["content"] or None, "tool_calls": payload["calls"]}
    message = republic.Message.from_dict(told)
    reasoning = [republic.Reasoning(payload["reasoning"])] if "reasoning" in payload else []
    data = [republic.ProviderData(**item) for item in payload.get("provider_data", ())]
    return replace(message, parts=(*message.parts, *reasoning, *data))


def _error(kind: str, message: str) -> BubError:
    match kind:
        case ErrorKind.CONTEXT_OVERFLOW:
            return ContextOverflow(message)
        case ErrorKind.NOT_FOUND:
            return NotFound(message)
        case _:
            return ModelError(message, action=Action.STOP)
