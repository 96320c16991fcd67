"""The loop: a model call, its tools, and again, until the model answers without asking for a tool."""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

import republic
import structlog

from bub_redis.agent.calls import ToolCalls
from bub_redis.agent.events import (
    ChatFinished,
    ChatStarted,
    EventBus,
    LLMCallFinished,
    LLMCallRequest,
    LLMCallResult,
    LLMCallStarted,
    RunFinished,
    RunStarted,
    RunStatus,
    StepFinished,
    StepStarted,
    StepStatus,
)
from bub_redis.agent.model import ModelClient, Reply
from bub_redis.agent.prompt import PromptContext, SystemPrompt, UserContent
from bub_redis.agent.stream import StreamEvent
from bub_redis.agent.tools import Toolbox
from bub_redis.errors import BubError, ModelError
from bub_redis.tape import Tape

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Parts:
    """What all runs of one agent share; none of it holds anything of a run (case 31)."""

    events: EventBus
    system_prompt: SystemPrompt
    toolbox: Toolbox
    max_steps: int
    max_tool_concurrency: int | None


class Run:
    """One run on one open tape, whose fork is the caller's affair."""

    def __init__(
        self, parts: Parts, client: ModelClient, options: Mapping[str, Any], *, tape: Tape, run_id: str
    ) -> None:
        self._parts = parts
        self._client = client
        self._options = options
        self._tape = tape
        self._run_id = run_id
        self._step = 0
        self._system_prompt: str | None = None
        self.final = StreamEvent("final", {})
        """The last step's `final` event, once there is one."""

    async def work(
        self, prompt: Sequence[UserContent], metadata: Mapping[str, Any]
    ) -> AsyncGenerator[StreamEvent, None]:
        """Run to the end, streaming all but the last `final` event, which is left in `final`.

        Raises ModelError, and what handlers, prompt sections and the tape raise. Closing it early cancels the
        run.
        """
        began = time.monotonic()
        status: RunStatus = "cancelled"
        error_text: str | None = None
        try:
            await self._parts.events.emit(
                RunStarted(**self._where, model=self._client.spec, prompt=prompt, metadata=metadata)
            )
            async with self._client.opened() as model, aclosing(self._steps(model, prompt)) as events:
                async for event in events:
                    yield event
            status = "ok"
        except Exception as error:
            status, error_text = "error", _described(error)
            raise
        finally:
            await self._parts.events.emit(
                RunFinished(
                    **self._where,
                    status=status,
                    steps=self._step,
                    elapsed_ms=_ms_since(began),
                    error=error_text,
                )
            )

    @property
    def _where(self) -> dict[str, Any]:
        return {"tape": self._tape, "run_id": self._run_id}

    async def _steps(
        self, model: republic.ChatModel, prompt: Sequence[UserContent]
    ) -> AsyncGenerator[StreamEvent, None]:
        step_prompt: Sequence[UserContent] | None = prompt
        while self._step < self._parts.max_steps:
            self._step += 1
            began = time.monotonic()
            await self._parts.events.emit(StepStarted(**self._where, step=self._step, prompt=step_prompt))
            try:
                async with aclosing(self.exchange(model, step_prompt)) as events:
                    async for event in events:
                        if event.kind == "final":
                            self.final = event
                        else:
                            yield event
            except Exception as error:
                await self._step_finished("error", began, _described(error))
                raise
            if "tool_calls" not in self.final.data:
                await self._step_finished("ok", began)
                return
            await self._step_finished("continue", began)
            yield self.final
            step_prompt = None
        raise ModelError(
            f"{self._client.spec} still asked for tools after {self._parts.max_steps} steps; "
            "look at what it keeps calling, or raise max_steps"
        )

    async def _step_finished(self, status: StepStatus, began: float, error: str | None = None) -> None:
        await self._parts.events.emit(
            StepFinished(**self._where, step=self._step, status=status, elapsed_ms=_ms_since(began), error=error)
        )

    async def exchange(
        self, model: republic.ChatModel, prompt: Sequence[UserContent] | None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Make one model call and run the tools it asks for; None as prompt goes on with the conversation."""
        chat = ChatFinished(**self._where, model=self._client.spec, provider=self._client.provider)
        try:
            request = await self._request(prompt)
            async with aclosing(self._answer(model, request, chat)) as events:
                async for event in events:
                    yield event
            if chat.message is not None and chat.message.tool_calls:
                yield StreamEvent("tool_call", _calls_data(chat.message))
                await self._run_tools(chat.message.tool_calls, chat)
        except BubError as error:
            chat.error = error
            raise
        finally:
            if chat.message is not None or chat.error is not None:
                await self._parts.events.emit(chat)
        for event in _ending(chat):
            yield event

    async def _request(self, prompt: Sequence[UserContent] | None) -> LLMCallRequest:
        """Put the prompt onto the tape, then read the view from it: so it holds the prompt once (case 32)."""
        tools = tuple(self._parts.toolbox)
        context = PromptContext(tape=self._tape, prompt=prompt or (), tools=tools, model=self._client.spec)
        system_prompt = await self._parts.system_prompt.render(context) or None
        await self._parts.events.emit(
            ChatStarted(
                **self._where,
                model=self._client.spec,
                new_messages=() if prompt is None else (republic.user(*prompt),),
                system_prompt=system_prompt,
                system_changed=system_prompt != self._system_prompt,
            )
        )
        self._system_prompt = system_prompt
        opening = () if system_prompt is None else (republic.system(system_prompt),)
        return LLMCallRequest(
            messages=(*opening, *await self._tape.read_messages()),
            options=self._options,
            model=self._client.spec,
            tool_names=tuple(tool.wire_name for tool in tools),
        )

    async def _answer(
        self, model: republic.ChatModel, request: LLMCallRequest, chat: ChatFinished
    ) -> AsyncGenerator[StreamEvent, None]:
        """Stream the answer, the model's or a handler's, and leave the whole of it in `chat`."""
        started = await self._parts.events.emit(LLMCallStarted(**self._where, request=request))
        request = started.request
        began = time.monotonic()
        reply = Reply()
        error: ModelError | None = None
        try:
            if started.decision is not None:
                reply.message = republic.assistant(started.decision.text)
                yield StreamEvent("text", {"delta": started.decision.text})
            else:
                options = self._with_tools(request.options)
                async with aclosing(reply.receive(self._client, model, request.messages, options)) as events:
                    async for event in events:
                        yield event
        except ModelError as raised:
            _log.warning("model.failed", model=self._client.spec, action=raised.action)
            error = raised
            raise
        finally:
            chat.message, chat.usage = reply.message, reply.usage
            if reply.message is not None or error is not None:
                result = LLMCallResult(
                    message=reply.message,
                    usage=reply.usage,
                    finish_reason=reply.finish_reason,
                    error=error,
                    duration_ms=_ms_since(began),
                )
                await self._parts.events.emit(LLMCallFinished(**self._where, request=request, result=result))
        yield StreamEvent("usage", {"usage": reply.usage, "elapsed_seconds": time.monotonic() - began})

    def _with_tools(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with the agent's tools before those that the provider runs itself."""
        tools = [tool.schema for tool in self._parts.toolbox]
        return {**options, "tools": [*tools, *options.get("tools", ())]}

    async def _run_tools(self, calls: Sequence[republic.ToolCall], chat: ChatFinished) -> None:
        """Run the calls; what is known of their results is in `chat`, also if this is cancelled."""
        running = ToolCalls(
            calls,
            toolbox=self._parts.toolbox,
            events=self._parts.events,
            step=self._step,
            **self._where,
        )
        try:
            await running.run(self._parts.max_tool_concurrency)
        finally:
            chat.call_ids, chat.tool_results = running.call_ids, running.results


def _calls_data(message: republic.Message) -> dict[str, Any]:
    return {"tool_calls": [asdict(call) for call in message.tool_calls]}


def _ending(chat: ChatFinished) -> list[StreamEvent]:
    message = chat.message or republic.assistant()
    if not message.tool_calls:
        return [StreamEvent("final", {"ok": True, "text": message.text})]
    results = {"tool_results": list(chat.tool_results), "call_ids": list(chat.call_ids)}
    return [
        StreamEvent("tool_result", results),
        StreamEvent("final", {"ok": True, **_calls_data(message), **results}),
    ]


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, BubError) else f"{type(error).__name__}: {error}".removesuffix(": ")


def _ms_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
