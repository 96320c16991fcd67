"""One exchange: what a step adds to the conversation, the model's answer, and the tools that it asks for."""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

import republic
import structlog

from bub_redis.agent.asking import Asking, OpenModels
from bub_redis.agent.budget import ContextSize
from bub_redis.agent.calls import ToolCalls
from bub_redis.agent.events import (
    ChatFinished,
    ChatStarted,
    LLMCallFinished,
    LLMCallRequest,
    LLMCallResult,
    LLMCallStarted,
)
from bub_redis.agent.failures import http_status
from bub_redis.agent.handoff import OVER_BUDGET
from bub_redis.agent.overflow import is_empty_refusal
from bub_redis.agent.prompt import PromptContext, UserContent
from bub_redis.agent.resume import StepRecord
from bub_redis.agent.scope import Scope
from bub_redis.agent.steering import Steer
from bub_redis.agent.stream import StreamEvent, calls_data, told_answer
from bub_redis.agent.tools import Toolbox
from bub_redis.errors import BubError, ContextOverflow, ModelError
from bub_redis.tape.info import CHARS_PER_TOKEN
from bub_redis.tape.replay import message_text_chars

_log = structlog.get_logger(__name__)

LARGE_VIEW_TOKENS = 32_000
"""From here on a request that is refused without a word is taken for an overflow (case 206)."""


@dataclass
class Step:
    """One model call and its tools, as the loop plans it."""

    number: int
    prompt: Sequence[UserContent] | None
    """The new user message; None goes on with the conversation."""
    entered: bool = False
    """Whether the prompt is on the tape already: a handoff enters it again."""
    record: StepRecord | None = None
    """What an earlier attempt left of the step."""


class Exchange:
    """One model call and its tools. What an earlier attempt recorded of it is neither asked for nor written again."""

    def __init__(self, scope: Scope, models: OpenModels, step: Step) -> None:
        self._scope = scope
        self._models = models
        self._step = step
        self._record = step.record or StepRecord(step.number, entered=step.entered)
        self._toolbox: Toolbox | None = None
        self._where: dict[str, Any] = {**scope.where, "step": step.number}
        self.view_messages = 0
        """How many messages the model was shown; 0 if it was not asked."""
        self.finish_reason: str | None = None
        answered = self._record.message is not None
        model = (scope.resume.model if answered else None) or scope.models.spec
        self.chat = ChatFinished(
            **self._where,
            model=model,
            provider=model.partition(":")[0],
            message=self._record.message,
            call_ids=self._record.call_ids,
            tool_results=self._record.results,
            usage=scope.resume.usage if answered else None,
            error=self._record.error,
        )

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        """Stream the exchange; a `final` event comes last. Raises the BubError that ended it."""
        if self._record.message is not None:
            for event in told_answer(self._record.message):
                yield event
        if not self._record.over:
            async with aclosing(self._held()) as events:
                async for event in events:
                    yield event
        elif self.chat.error is not None:
            raise self.chat.error
        for event in _ending(self.chat):
            yield event

    async def _held(self) -> AsyncGenerator[StreamEvent, None]:
        """Ask and run the tools, as far as an earlier attempt has not, and record how it went."""
        chat = self.chat
        try:
            if chat.message is None:
                async with aclosing(self._asked()) as events:
                    async for event in events:
                        yield event
            if chat.message is not None and chat.message.tool_calls:
                if self._record.message is None:
                    yield StreamEvent("tool_call", calls_data(chat.message))
                await self._run_tools(chat.message.tool_calls)
        except BubError as error:
            chat.error = error
            raise
        finally:
            if chat.message is not None or chat.error is not None:
                await self._scope.events.emit(chat)

    async def wish(self) -> tuple[Literal["handoff", "reset"], Mapping[str, Any]] | None:
        """What a tool that went well asks of the loop, with its result; the last one counts."""
        chat, wish = self.chat, None
        if chat.message is not None and chat.message.tool_calls:
            tools, results = await self._tools(), dict(zip(chat.call_ids, chat.tool_results, strict=True))
            for call in chat.message.tool_calls:
                tool, result = tools.find(call.name), results.get(call.id)
                if tool is not None and tool.asks_for and isinstance(result, dict) and "kind" not in result:
                    wish = tool.asks_for, result
        return wish

    async def _asked(self) -> AsyncGenerator[StreamEvent, None]:
        tools = await self._tools()
        system_prompt = await self._system_prompt(tools)
        async with aclosing(self._entered(system_prompt)) as events:
            async for event in events:
                yield event
        messages, handoff = await self._view()
        if handoff is not None:
            yield StreamEvent("handoff", handoff)
        self.view_messages = len(messages)
        opening = () if system_prompt is None else (republic.system(system_prompt),)
        request = LLMCallRequest(
            messages=(*opening, *messages),
            options=self._scope.options,
            model=self._scope.models.spec,
            tool_names=tuple(tool.wire_name for tool in tools),
        )
        async with aclosing(self._answer(request, tools)) as events:
            async for event in events:
                yield event

    async def _tools(self) -> Toolbox:
        if self._toolbox is None:
            hooks, tape = self._scope.hooks, self._scope.tape
            self._toolbox = Toolbox(await hooks.prepare_tools(tape, self._step.prompt))
        return self._toolbox

    async def _system_prompt(self, tools: Toolbox) -> str | None:
        scope = self._scope
        context = PromptContext(
            tape=scope.tape, prompt=self._step.prompt or (), tools=tuple(tools), model=scope.models.spec
        )
        return await scope.system_prompt.render(context) or None

    async def _entered(self, system_prompt: str | None) -> AsyncGenerator[StreamEvent, None]:
        """Put what the step adds to the conversation onto the tape, from which the view is then read (case 32)."""
        scope, prompt = self._scope, self._step.prompt
        told = [] if prompt is None or self._record.entered else [republic.user(*prompt)]
        waiting = [] if scope.inbox is None else list(await scope.inbox.waiting())
        steers = [*waiting, *(Steer(pending) for pending in await scope.hooks.pending_messages(scope.tape))]
        system_changed = system_prompt != scope.used_system_prompt
        if self._step.record is None or told or steers or system_changed:
            await scope.events.emit(
                ChatStarted(
                    **self._where,
                    model=scope.models.spec,
                    new_messages=(*told, *(steer.message for steer in steers)),
                    steers=steers,
                    system_prompt=system_prompt,
                    system_changed=system_changed,
                )
            )
        scope.used_system_prompt = system_prompt
        if steers:
            scope.said.steers += steers
            if scope.inbox is not None and waiting:
                await scope.inbox.taken(len(waiting))
            yield StreamEvent("steered", {"messages": [steer.message.to_dict()["content"] for steer in steers]})

    async def _view(self) -> tuple[list[Any], Mapping[str, Any] | None]:
        """The messages for the model and, if the budget asked for one, the handoff that was made for them."""
        scope = self._scope
        tape = scope.tape
        entries = await tape.context.entries(tape.query())
        if scope.lost_prompt(entries):
            await tape.append(*scope.said.again())
            entries = await tape.context.entries(tape.query())
        messages = await tape.context.messages(entries)
        if not scope.may_hand_off(len(messages)) or not await scope.hooks.over_budget(tape, ContextSize.of(entries)):
            return messages, None
        handoff = await scope.hand_off(OVER_BUDGET)
        return await tape.read_messages(), handoff.data

    async def _answer(self, request: LLMCallRequest, tools: Toolbox) -> AsyncGenerator[StreamEvent, None]:
        """Stream the answer, the model's or a handler's, and leave the whole of it in `chat`."""
        started = await self._scope.events.emit(LLMCallStarted(**self._where, request=request))
        request = started.request
        began = time.monotonic()
        if started.decision is not None:
            self.chat.message = republic.assistant(started.decision.text)
            await self._answered(request, began)
            yield StreamEvent("text", {"delta": started.decision.text})
        else:
            # The agent's tools stand before those that the provider runs itself.
            offered = [*(tool.schema for tool in tools), *request.options.get("tools", ())]
            asking = self._models.ask(request, {**request.options, "tools": offered})
            async with aclosing(self._from_model(asking, request, began)) as events:
                async for event in events:
                    yield event
        yield StreamEvent("usage", {"usage": self.chat.usage, "elapsed_seconds": time.monotonic() - began})

    async def _from_model(
        self, asking: Asking, request: LLMCallRequest, began: float
    ) -> AsyncGenerator[StreamEvent, None]:
        chat = self.chat
        try:
            async with aclosing(asking.events()) as events:
                async for event in events:
                    yield event
        except ModelError as raised:
            error = _as_overflow(raised, request)
            told = {"action": error.action, "kind": error.kind, "http_status": http_status(raised)}
            _log.warning("model.failed", model=asking.reply.client.spec, **told)
            chat.error = error
            raise error from raised.__cause__
        finally:
            reply = asking.reply
            chat.message, chat.usage, self.finish_reason = reply.message, reply.usage, reply.finish_reason
            chat.model, chat.provider = reply.client.spec, reply.client.provider
            if chat.message is not None or chat.error is not None:
                await self._answered(request, began)

    async def _answered(self, request: LLMCallRequest, began: float) -> None:
        chat = self.chat
        result = LLMCallResult(
            message=chat.message,
            usage=chat.usage,
            finish_reason=self.finish_reason,
            error=chat.error,
            duration_ms=round((time.monotonic() - began) * 1000),
        )
        request = replace(request, model=chat.model)
        await self._scope.events.emit(LLMCallFinished(**self._where, request=request, result=result))

    async def _run_tools(self, calls: Sequence[republic.ToolCall]) -> None:
        """Run the calls; what is known of their results is in `chat`, also if this is cancelled."""
        running = ToolCalls(
            calls,
            toolbox=await self._tools(),
            scope=self._scope,
            step=self._step.number,
            # Only for calls that stand on the tape: a new answer's are new, whatever their place.
            earlier=self._scope.resume if self._record.message is not None else None,
        )
        try:
            await running.run(self._scope.max_tool_concurrency)
        finally:
            self.chat.call_ids, self.chat.tool_results = running.call_ids, running.results


def _as_overflow(error: ModelError, request: LLMCallRequest) -> ModelError:
    """A refusal without a word as the overflow that it is likely to be, if the request was large (case 206)."""
    if is_empty_refusal(error) and message_text_chars(request.messages) > LARGE_VIEW_TOKENS * CHARS_PER_TOKEN:
        return ContextOverflow(f"{error} (a large request, refused without a word)")
    return error


def _ending(chat: ChatFinished) -> list[StreamEvent]:
    message = chat.message or republic.assistant()
    if not message.tool_calls:
        return [StreamEvent("final", {"ok": True, "text": message.text})]
    results = {"tool_results": list(chat.tool_results), "call_ids": list(chat.call_ids)}
    return [
        StreamEvent("tool_result", results),
        StreamEvent("final", {"ok": True, **calls_data(message), **results}),
    ]
