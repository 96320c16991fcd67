"""What happens in a run, and the bus that tells it to whoever asked.

Handlers run in the order in which they were registered and are waited for; what one raises ends the run.
"""

import inspect
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import republic

from bub_redis.agent.prompt import UserContent
from bub_redis.agent.steering import Steer
from bub_redis.agent.tools import ToolContext
from bub_redis.errors import BubError
from bub_redis.tape import Tape

RunStatus = Literal["ok", "error", "cancelled"]
StepStatus = Literal["ok", "continue", "error", "auto_handoff"]


@dataclass(kw_only=True)
class AgentEvent:
    """Something that happened in a run; a handler for this class receives every event."""

    tape: Tape
    run_id: str

    @property
    def state(self) -> MutableMapping[str, Any]:
        """The run's state, shared with tools and prompt sections."""
        return self.tape.context.state

    @property
    def decided(self) -> bool:
        """Whether a handler made a decision that the handlers after it are not asked about."""
        return False


@dataclass(kw_only=True)
class StepEvent(AgentEvent):
    """Something that happened in one step of a run."""

    step: int
    """From 1."""


@dataclass(kw_only=True)
class RunStarted(AgentEvent):
    """A run began."""

    model: str
    """The `provider:model` that it calls."""
    prompt: Sequence[UserContent]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The caller's own, recorded with the start."""
    resumed: bool = False
    """Whether it goes on from what an earlier attempt recorded: its start is on the tape already."""


@dataclass(kw_only=True)
class RunFinished(AgentEvent):
    """A run ended, however it ended: one for each RunStarted."""

    status: RunStatus
    steps: int
    elapsed_ms: int
    error: str | None = None
    resumed: bool = False
    """Whether an earlier attempt ended it: its end is on the tape already."""


@dataclass(kw_only=True)
class StepStarted(StepEvent):
    """A step, that is one model call and its tools, began."""

    prompt: Sequence[UserContent] | None
    """The new user message; None when the step goes on with the conversation."""
    resumed: bool = False
    """Whether an earlier attempt began this step: its start is on the tape already."""


@dataclass(kw_only=True)
class StepFinished(StepEvent):
    """A step ended; `continue` and `auto_handoff` mean that another one follows. A cancelled step does not finish."""

    status: StepStatus
    elapsed_ms: int
    error: str | None = None


@dataclass(kw_only=True)
class ChatStarted(StepEvent):
    """What a step adds to the conversation is known, and no model has seen it yet.

    The view of the model call is read from the tape after this event: what is to be in it is appended here.
    """

    model: str
    new_messages: Sequence[republic.Message]
    """The prompt if there is one, then the steering messages."""
    steers: Sequence[Steer] = ()
    """The steering messages, the last of `new_messages`, as they were taken."""
    system_prompt: str | None
    system_changed: bool
    """Whether the run has not used this system prompt before."""


@dataclass(frozen=True, kw_only=True)
class LLMCallRequest:
    """One model call. Handlers may put another one in its place, with other messages or options."""

    messages: Sequence[Any]
    options: Mapping[str, Any]
    """Republic's ChatOptions, without the tools."""
    model: str
    """The `provider:model` that is called. With another one in its place there are no fallbacks."""
    tool_names: tuple[str, ...] = ()
    """The tools that are offered; for reading."""


@dataclass(frozen=True)
class LLMCallDecision:
    """A handler's answer in place of the model's."""

    text: str

    @classmethod
    def finish(cls, text: str) -> "LLMCallDecision":
        """End the step with `text`, without calling the model."""
        return cls(text)


@dataclass(kw_only=True)
class LLMCallStarted(StepEvent):
    """A model is about to be called. Handlers may replace `request`, or set `decision`: no call is made."""

    request: LLMCallRequest
    decision: LLMCallDecision | None = None

    @property
    def decided(self) -> bool:
        """Whether a handler finished the call."""
        return self.decision is not None


@dataclass(frozen=True, kw_only=True)
class LLMCallResult:
    """How a model call ended."""

    message: republic.Message | None
    """The whole response; None if the call failed: a part of a response is none."""
    usage: Mapping[str, int] | None
    """Tokens of this call; None if the provider told none, which is not zero."""
    finish_reason: str | None = None
    error: BubError | None = None
    duration_ms: int = 0


@dataclass(kw_only=True)
class LLMCallFinished(StepEvent):
    """A model call completed, failed, or was finished by a decision; none of its tools has run.

    A cancelled call does not finish.
    """

    request: LLMCallRequest
    """With the model that answered, or failed last."""
    result: LLMCallResult


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call of a tool. Handlers may put another one in its place, with other arguments."""

    id: str
    tool: str
    """The tool's own name, or what the model called if there is no such tool."""
    arguments: Mapping[str, Any]
    """As the model sent them, before validation; empty if they were no JSON object."""
    context: ToolContext


@dataclass(frozen=True, kw_only=True)
class ToolCallDecision:
    """A handler's verdict on a call."""

    action: Literal["proceed", "replace", "deny"] = "proceed"
    result: Any = None
    message: str = ""

    @classmethod
    def replace(cls, result: Any) -> "ToolCallDecision":
        """Answer the call with `result`; the tool does not run."""
        return cls(action="replace", result=result)

    @classmethod
    def deny(cls, message: str) -> "ToolCallDecision":
        """Answer the call with an error that says `message`; the tool does not run."""
        return cls(action="deny", message=message)


@dataclass(kw_only=True)
class ToolCallStarted(StepEvent):
    """A tool is about to run. Handlers may replace `call`, or set `decision`; a run's own handlers come last."""

    call: ToolCall
    decision: ToolCallDecision = field(default_factory=ToolCallDecision)

    @property
    def decided(self) -> bool:
        """Whether a handler answered the call."""
        return self.decision.action != "proceed"


@dataclass(kw_only=True)
class ToolCallFinished(StepEvent):
    """A call has its result. Handlers may replace `result`: the last one is what the model reads.

    A run's own handlers come after that and see what is recorded.
    """

    call: ToolCall
    result: Any
    """JSON. What went wrong is a result too: `{"kind", "message", "details"?}`."""
    error: BaseException | None = None
    """What the tool raised, or why it could not be called; None if it, or a handler, answered."""
    duration_ms: int = 0


@dataclass(kw_only=True)
class ChatFinished(StepEvent):
    """A step's exchange with the model is over: the response is whole and its tools ran, or it failed.

    Also sent when a run is cut short while tools ran, with the results that are known; not when the model
    call itself was cut short.
    """

    model: str
    provider: str
    message: republic.Message | None = None
    """The response; None if the call failed."""
    call_ids: Sequence[str] = ()
    tool_results: Sequence[Any] = ()
    """Beside `call_ids`, in the order of the calls."""
    usage: Mapping[str, int] | None = None
    error: BubError | None = None


E = TypeVar("E", bound=AgentEvent)
Handler = Callable[[E], object]
"""A sync or async function of an event; what it returns is ignored."""


class EventBus:
    """Deliver events to handlers by class, in the order of registration."""

    def __init__(self) -> None:
        self._handlers: list[tuple[type[AgentEvent], Handler[Any]]] = []

    def on(self, event_class: type[E], handler: Handler[E]) -> None:
        """Call `handler` for every event of this class and of the classes made from it."""
        self._handlers.append((event_class, handler))

    async def emit(self, event: E) -> E:
        """Deliver `event` and return it as the handlers left it. What a handler raises is raised here."""
        for event_class, handler in tuple(self._handlers):
            if event.decided:
                break
            if isinstance(event, event_class):
                outcome = handler(event)
                if inspect.isawaitable(outcome):
                    await outcome
        return event


class RunEvents:
    """The events of one run: to the handlers of its agent, then to its own."""

    def __init__(self, agents: EventBus, own: EventBus | None = None) -> None:
        self.agents = agents
        self.own = EventBus() if own is None else own

    async def emit(self, event: E) -> E:
        """Deliver `event` and return it as the handlers left it."""
        await self.agents.emit(event)
        return await self.own.emit(event)
