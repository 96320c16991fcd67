"""The agent: a model, tools, a system prompt and a store of tapes, put together once and run many times."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import republic

from bub_redis.agent.asking import Models
from bub_redis.agent.budget import Budget, ContextSize
from bub_redis.agent.events import EventBus, RunEvents
from bub_redis.agent.exchange import Exchange, Step
from bub_redis.agent.handoff import Said
from bub_redis.agent.hooks import Hooks
from bub_redis.agent.loop import Run
from bub_redis.agent.model import Model
from bub_redis.agent.prompt import Prompt, PromptSection, SystemPrompt, UserContent, prompt_parts
from bub_redis.agent.recorder import TapeRecorder
from bub_redis.agent.resume import Resume, RunRecord
from bub_redis.agent.scope import Scope
from bub_redis.agent.spilling import Spilling, spill_read
from bub_redis.agent.steering import Inbox
from bub_redis.agent.stream import EventStream, StreamEvent
from bub_redis.agent.tools import Tool, Toolbox
from bub_redis.errors import BubError, InvalidInput
from bub_redis.tape import (
    AsyncTapeStore,
    InMemoryTapeStore,
    Tape,
    TapeContext,
    TapeSidecar,
    TapeStore,
    adapted,
    default_tape_context,
)
from bub_redis.tape.spill import SpillStore

MAX_STEPS = 50
"""How many model calls a run may make, unless the agent says otherwise."""

MAX_RESULT_BYTES = 1024 * 1024
"""The largest result of a tool that reaches the tape, unless the agent says otherwise. Spill keeps larger ones."""


class Agent(Hooks):
    """Run the loop over a model and tools on tapes: `async with agent.run("Hi", tape="c-42") as stream`.

    An agent holds nothing of a run, so any number of runs may be under way at once. `system_prompt.add` adds
    sections, `events.on` registers handlers; a TapeRecorder is registered first and writes the tape. A subclass
    may override the hooks, which are those of Hooks.
    """

    def __init__(
        self,
        *,
        model: Model | None = None,
        fallbacks: Iterable[Model] = (),
        store: TapeStore | AsyncTapeStore | None = None,
        sidecars: Iterable[TapeSidecar] = (),
        tools: Iterable[Tool | Callable[..., Any]] = (),
        system_prompt: PromptSection | Iterable[PromptSection] = (),
        context: TapeContext | None = None,
        budget: Budget | None = None,
        max_steps: int = MAX_STEPS,
        max_tool_concurrency: int | None = None,
        max_result_bytes: int = MAX_RESULT_BYTES,
        model_timeout_s: float | None = None,
        run_timeout_s: float | None = None,
        name: str = "agent",
    ) -> None:
        """Put an agent together; nothing is opened or connected.

        `model` is a spec `provider:model` or a Republic model, for runs that are not given one; `fallbacks` are
        called in its place, in order, where it fails before its first token. `store` keeps the tapes, by default
        in memory; `sidecars` are mounted on each, and a SpillStore among them keeps large results and brings the
        tool `spill.read`. `tools` are functions or what `tool` made of them. `system_prompt` is a text, a function of a
        PromptContext, or several of both. `context` says how a tape becomes a model's messages; `budget`, how
        large it may get before a handoff.

        `max_steps` is the most model calls of a run; `max_tool_concurrency` the most calls of one response that
        run at once, None for all, 1 for one by one in order; `max_result_bytes` the most one result may have, as
        JSON. `model_timeout_s` is the longest one answer may take, `run_timeout_s` a whole run; None for no limit
        but Republic's own, 600 s of silence.

        Raises InvalidInput for limits that leave nothing and for tools that a model could not tell apart.
        """
        for limit in (max_steps, max_tool_concurrency, max_result_bytes):
            if limit is not None and limit < 1:
                raise InvalidInput(f"max_steps, max_tool_concurrency and max_result_bytes are 1 or more, not {limit}")
        for timeout_s in (model_timeout_s, run_timeout_s):
            if timeout_s is not None and timeout_s <= 0:
                raise InvalidInput(f"model_timeout_s and run_timeout_s are more than 0 s, not {timeout_s}")
        self.name = name
        self.model = model
        self.fallbacks = tuple(fallbacks)
        self.budget = budget
        self.events = EventBus()
        self.system_prompt = SystemPrompt(system_prompt)
        TapeRecorder().subscribe(self.events)
        self._spilling = EventBus()
        Spilling().subscribe(self._spilling)
        self.sidecars: tuple[TapeSidecar, ...] = ()
        self._toolbox = Toolbox(tools)
        self.mount(*sidecars)
        self._max_steps = max_steps
        self._max_tool_concurrency = max_tool_concurrency
        self._max_result_bytes = max_result_bytes
        self._model_timeout_s = model_timeout_s
        self._run_timeout_s = run_timeout_s
        self._store = adapted(InMemoryTapeStore() if store is None else store)
        self._context = context or default_tape_context()

    def mount(self, *sidecars: TapeSidecar) -> None:
        """Mount sidecars on each tape from now on; a SpillStore among them brings the tool `spill.read`."""
        self.sidecars += sidecars
        if any(isinstance(sidecar, SpillStore) for sidecar in sidecars):
            self._toolbox.add_missing(spill_read)

    def tape(self, name: str, *, state: MutableMapping[str, Any] | None = None) -> Tape:
        """A tape of the agent's store, to read it or to append to it directly; nothing is read yet.

        Raises InvalidInput for a name that no tape may have.
        """
        own_state = dict(self._context.state) if state is None else state
        return Tape(name, self._store, replace(self._context, state=own_state), self.sidecars)

    @asynccontextmanager
    async def session(
        self,
        name: str,
        *,
        state: MutableMapping[str, Any] | None = None,
        merge_back: bool = True,
        run_id: str | None = None,
    ) -> AsyncIterator[Tape]:
        """Hold a tape's session and work on a fork of it, merged at the end, also after an exception.

        `merge_back=False` drops what was appended, and only that: what tools did stays done. `run_id` names
        the commit. Raises SessionBusy if another run holds the session for long, and what a merge raises.
        """
        tape = self.tape(name, state=state)
        # By itself and before the fork: also where the fork is dropped, the tape has where contexts start
        # from.
        await tape.ensure_bootstrap_anchor()
        async with tape.fork_tape(merge_back, run_id=run_id) as fork:
            yield fork

    @asynccontextmanager
    async def run(
        self,
        prompt: Prompt,
        *,
        tape: str,
        model: Model | None = None,
        options: Mapping[str, Any] | None = None,
        state: MutableMapping[str, Any] | None = None,
        merge_back: bool = True,
        metadata: Mapping[str, Any] | None = None,
        inbox: Inbox | None = None,
    ) -> AsyncIterator[EventStream]:
        """Run `prompt` on a fork of the tape `tape`; iterating the stream drives the run.

        Leaving the block before the stream ended cancels the run; what there was is merged then too. The
        parameters and errors are those of `start`.
        """
        stream = await self.start(
            prompt,
            tape=tape,
            model=model,
            options=options,
            state=state,
            merge_back=merge_back,
            metadata=metadata,
            inbox=inbox,
        )
        async with aclosing(stream):
            yield stream

    async def start(
        self,
        prompt: Prompt,
        *,
        tape: str,
        model: Model | None = None,
        options: Mapping[str, Any] | None = None,
        state: MutableMapping[str, Any] | None = None,
        merge_back: bool = True,
        metadata: Mapping[str, Any] | None = None,
        inbox: Inbox | None = None,
    ) -> EventStream:
        """Prepare a run and return its stream, which the caller must close; `run` does both.

        The session is held from the first event to the end of the stream. `options` are Republic's
        ChatOptions, for each model call; `state` is the run's own, shared by tools, prompt sections and
        handlers; `metadata` is recorded with the start; messages in `inbox` enter before the next model call.
        An error, an early exit and a cancel merge what there was. `merge_back=False` drops the tape writes, and
        only those: what tools did stays done.

        Raises InvalidInput and ModelError for arguments that cannot work, with nothing opened or written. The
        stream raises ModelError if a model call fails, ContextOverflow if a new context does not help, TimedOut,
        SessionBusy, and what handlers, hooks, prompt sections and the store raise.
        """
        parts = prompt_parts(prompt)
        models = self._models(model)
        checked = _checked_options(options)
        self.tape(tape)

        async def work() -> EventStream:
            run_id = secrets.token_hex(8)
            async with self.session(tape, state=state, merge_back=merge_back, run_id=run_id) as fork:
                run = self._run(fork, parts, models, checked, run_id, inbox=inbox)
                async with aclosing(run.work(metadata or {})) as events:
                    async for event in events:
                        yield event
            yield run.final

        return _with_error_event(work())

    async def run_on(
        self,
        tape: Tape,
        prompt: Prompt,
        *,
        model: Model | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        inbox: Inbox | None = None,
        events: EventBus | None = None,
        resume: Resume | None = None,
    ) -> EventStream:
        """Prepare a run on an open tape and return its stream; fork and merge are the caller's affair.

        The run's state is that of the tape's context. `run_id` stands in the meta of its entries and in the
        idempotency keys of its calls, which are stable only if it is. `events` holds handlers of this run alone;
        they come after the agent's and see what those made of an event. With `resume` the run of that id goes on
        from what the fork holds of it. Raises like `start`; InvalidInput for a `resume` on a tape that is no fork.
        """
        run = self._run(
            tape,
            prompt_parts(prompt),
            self._models(model),
            _checked_options(options),
            run_id or secrets.token_hex(8),
            inbox=inbox,
            events=events,
            resume=resume,
        )

        async def work() -> EventStream:
            async with aclosing(run.work(metadata or {})) as events:
                async for event in events:
                    yield event
            yield run.final

        return _with_error_event(work())

    async def run_once(
        self,
        prompt: Prompt | None,
        *,
        tape: Tape,
        model: Model | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> EventStream:
        """Make one model call on an open tape and run its tools; None goes on with the conversation.

        Records the exchange, without the events of a run around it, and never hands off by itself after an
        overflow. Raises like `start`.
        """
        parts = None if prompt is None else prompt_parts(prompt)
        models = self._models(model)
        scope = self._scope(tape, parts, models, _checked_options(options), secrets.token_hex(8))
        async with (
            models.opened(self._model_timeout_s) as opened,
            aclosing(Exchange(scope, opened, Step(1, parts)).events()) as events,
        ):
            async for event in events:
                yield event

    async def prepare_tools(self, tape: Tape, prompt: Sequence[UserContent] | None) -> Sequence[Tool]:
        """All of the agent's tools."""
        return tuple(self._toolbox)

    async def over_budget(self, tape: Tape, size: ContextSize) -> bool:
        """Whether the agent has a budget and `size` exceeds it."""
        return self.budget is not None and self.budget.is_exceeded(size)

    def _models(self, model: Model | None) -> Models:
        return Models(self.model, self.fallbacks) if model is None else Models(model)

    def _run(
        self,
        tape: Tape,
        prompt: tuple[UserContent, ...],
        models: Models,
        options: Mapping[str, Any],
        run_id: str,
        *,
        inbox: Inbox | None,
        events: EventBus | None = None,
        resume: Resume | None = None,
    ) -> Run:
        scope = self._scope(tape, prompt, models, options, run_id, inbox=inbox, events=events)
        record = None
        if resume is not None:
            record = RunRecord.of(tape, run_id)
            scope.go_on(resume, record)
        return Run(
            scope,
            prompt,
            max_steps=self._max_steps,
            model_timeout_s=self._model_timeout_s,
            timeout_s=self._run_timeout_s,
            record=record,
        )

    def _scope(
        self,
        tape: Tape,
        prompt: tuple[UserContent, ...] | None,
        models: Models,
        options: Mapping[str, Any],
        run_id: str,
        *,
        inbox: Inbox | None = None,
        events: EventBus | None = None,
    ) -> Scope:
        return Scope(
            tape=tape,
            run_id=run_id,
            events=RunEvents(self.events, events),
            spilling=self._spilling,
            hooks=self,
            system_prompt=self.system_prompt,
            models=models,
            options=options,
            said=Said(run_id, None if prompt is None else republic.user(*prompt)),
            max_tool_concurrency=self._max_tool_concurrency,
            max_result_bytes=self._max_result_bytes,
            inbox=inbox,
        )


def _checked_options(options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    known = republic.ChatOptions.__annotations__
    if unknown := sorted(set(options or ()) - set(known)):
        raise InvalidInput(f"there are no options {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return dict(options or {})


async def _with_error_event(events: EventStream) -> EventStream:
    """The events of a run and, if it fails, an `error` event once all is recorded, before it is raised."""
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except BubError as error:
        yield StreamEvent("error", {"kind": str(error.kind), "message": str(error)})
        raise
