"""The agent: a model, tools, a system prompt and a store of tapes, put together once and run many times."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, MutableMapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import republic

from bub_redis.agent.events import EventBus
from bub_redis.agent.loop import Parts, Run
from bub_redis.agent.model import Model, ModelClient
from bub_redis.agent.prompt import Prompt, PromptSection, SystemPrompt, prompt_parts
from bub_redis.agent.recorder import TapeRecorder
from bub_redis.agent.stream import EventStream, StreamEvent
from bub_redis.agent.tools import Tool, Toolbox
from bub_redis.errors import BubError, InvalidInput
from bub_redis.tape import AsyncTapeStore, InMemoryTapeStore, Tape, TapeContext, default_tape_context

MAX_STEPS = 50
"""How many model calls a run may make, unless the agent says otherwise."""


class Agent:
    """Run the loop over a model and tools on tapes: `async with agent.run("Hi", tape="c-42") as stream`.

    An agent holds nothing of a run, so any number of runs may be under way at once. `system_prompt.add` adds
    sections, `events.on` registers handlers; a TapeRecorder is registered first and writes the tape.
    """

    def __init__(
        self,
        *,
        model: Model | None = None,
        store: AsyncTapeStore | None = None,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        system_prompt: PromptSection | Iterable[PromptSection] = (),
        context: TapeContext | None = None,
        max_steps: int = MAX_STEPS,
        max_tool_concurrency: int | None = None,
        name: str = "agent",
    ) -> None:
        """Put an agent together; nothing is opened or connected.

        `model` is a spec `provider:model` or a Republic model, for runs that are not given one. `store` keeps
        the tapes, by default in memory. `tools` are functions or what `tool` made of them. `system_prompt` is
        a text, a function of a PromptContext, or several of both. `context` says how a tape becomes a model's
        messages. `max_steps` is the most model calls of a run; `max_tool_concurrency` the most calls of one
        response that run at once, None for all, 1 for one by one in order.

        Raises InvalidInput for limits below 1 and for tools that a model could not tell apart.
        """
        for limit in (max_steps, max_tool_concurrency):
            if limit is not None and limit < 1:
                raise InvalidInput(f"max_steps and max_tool_concurrency are 1 or more, not {limit}")
        self.name = name
        self.model = model
        self.events = EventBus()
        self.system_prompt = SystemPrompt(system_prompt)
        TapeRecorder().subscribe(self.events)
        self._parts = Parts(self.events, self.system_prompt, Toolbox(tools), max_steps, max_tool_concurrency)
        self._store = InMemoryTapeStore() if store is None else store
        self._context = context or default_tape_context()

    def tape(self, name: str, *, state: MutableMapping[str, Any] | None = None) -> Tape:
        """A tape of the agent's store, to read it or to append to it directly; nothing is read yet.

        Raises InvalidInput for a name that no tape may have.
        """
        own_state = dict(self._context.state) if state is None else state
        return Tape(name, self._store, replace(self._context, state=own_state))

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
    ) -> EventStream:
        """Prepare a run and return its stream, which the caller must close; `run` does both.

        The session is held from the first event to the end of the stream. `options` are Republic's
        ChatOptions, for each model call; `state` is the run's own, shared by tools, prompt sections and
        handlers; `metadata` is recorded with the start. `merge_back=False` drops the tape writes, and only
        those.

        Raises InvalidInput and ModelError for arguments that cannot work, with nothing opened or written. The
        stream raises ModelError if a model call fails, SessionBusy, and what handlers, prompt sections and
        the store raise.
        """
        parts = prompt_parts(prompt)
        client = self._client(model)
        checked = _checked_options(options)
        self.tape(tape)

        async def work() -> EventStream:
            run_id = secrets.token_hex(8)
            async with self.session(tape, state=state, merge_back=merge_back, run_id=run_id) as fork:
                run = Run(self._parts, client, checked, tape=fork, run_id=run_id)
                async with aclosing(run.work(parts, metadata or {})) as events:
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
    ) -> EventStream:
        """Prepare a run on an open tape and return its stream; fork and merge are the caller's affair.

        The run's state is that of the tape's context. `run_id` stands in the meta of its entries and in the
        idempotency keys of its calls, which are stable only if it is. Raises like `start`.
        """
        parts = prompt_parts(prompt)
        client = self._client(model)
        run = Run(self._parts, client, _checked_options(options), tape=tape, run_id=run_id or secrets.token_hex(8))

        async def work() -> EventStream:
            async with aclosing(run.work(parts, metadata or {})) as events:
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

        Records the exchange, without the events of a run around it. Raises like `start`.
        """
        parts = None if prompt is None else prompt_parts(prompt)
        client = self._client(model)
        run = Run(self._parts, client, _checked_options(options), tape=tape, run_id=secrets.token_hex(8))
        async with client.opened() as opened, aclosing(run.exchange(opened, parts)) as events:
            async for event in events:
                yield event

    def _client(self, model: Model | None) -> ModelClient:
        return ModelClient.of(self.model if model is None else model)


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
