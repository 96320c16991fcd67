"""The loop: a model call, its tools, and again, until the model answers without asking for a tool."""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from bub_redis.agent.asking import OpenModels
from bub_redis.agent.budget import ContextSize
from bub_redis.agent.deadline import within
from bub_redis.agent.events import RunFinished, RunStarted, RunStatus, StepFinished, StepStarted, StepStatus
from bub_redis.agent.exchange import Exchange, Step
from bub_redis.agent.handoff import OVER_BUDGET, REFUSED, Handoff
from bub_redis.agent.prompt import UserContent, prompt_parts
from bub_redis.agent.resume import RunRecord
from bub_redis.agent.scope import Scope
from bub_redis.agent.stream import StreamEvent
from bub_redis.errors import BubError, ContextOverflow, InvalidInput, ModelError, TimedOut


class Run:
    """One run on one open tape, whose fork is the caller's affair."""

    def __init__(
        self,
        scope: Scope,
        prompt: tuple[UserContent, ...],
        *,
        max_steps: int,
        model_timeout_s: float | None = None,
        timeout_s: float | None = None,
        record: RunRecord | None = None,
    ) -> None:
        self._scope = scope
        self._prompt = prompt
        self._max_steps = max_steps
        self._model_timeout_s = model_timeout_s
        self._timeout_s = timeout_s
        self._record = record or RunRecord()
        self._steps_begun = 0
        self._next: Step | None = None
        self.final = StreamEvent("final", {})
        """The last step's `final` event, once there is one."""

    async def work(self, metadata: Mapping[str, Any]) -> AsyncGenerator[StreamEvent, None]:
        """Run to the end, streaming all but the last `final` event, which is left in `final`.

        Raises ModelError, TimedOut, and what handlers, hooks, prompt sections and the tape raise. Closing it early
        cancels the run.
        """
        scope, record = self._scope, self._record
        if record.status == "cancelled":
            raise InvalidInput("the run was cancelled and has ended: there is nothing to go on with")
        began = time.monotonic()
        status: RunStatus = "cancelled"
        error_text: str | None = None
        try:
            await scope.events.emit(
                RunStarted(
                    **scope.where,
                    model=scope.models.spec,
                    prompt=self._prompt,
                    metadata=metadata,
                    resumed=record.started,
                )
            )
            for event in record.told_again():
                yield event
            async with (
                scope.models.opened(self._model_timeout_s) as models,
                aclosing(within(self._steps(models), self._timeout_s, self._late)) as events,
            ):
                async for event in events:
                    yield event
            status = "ok"
        except Exception as error:
            status, error_text = "error", _described(error)
            raise
        finally:
            await scope.events.emit(
                RunFinished(
                    **scope.where,
                    status=status,
                    steps=self._steps_begun,
                    elapsed_ms=_ms_since(began),
                    error=error_text,
                    resumed=record.status is not None,
                )
            )

    def _late(self) -> TimedOut:
        return TimedOut(f"the run did not end within {self._timeout_s:g} s; ask for less, or raise run_timeout_s")

    async def _steps(self, models: OpenModels) -> AsyncGenerator[StreamEvent, None]:
        self._next = await self._first_step()
        while self._next is not None:
            step = self._next
            if step.number > self._max_steps:
                raise ModelError(
                    f"{self._scope.models.spec} still asked for tools after {self._max_steps} steps; "
                    "look at what it keeps calling, or raise max_steps"
                )
            self._steps_begun = step.number
            async with aclosing(self._step(models, step)) as events:
                async for event in events:
                    yield event

    async def _first_step(self) -> Step | None:
        """Where the run begins: at its prompt, or where an earlier attempt left it; None if nothing is left to do."""
        record = self._record.step
        if record is None:
            return Step(1, self._prompt)
        if record.status is None:
            return Step(record.number, record.prompt, record.entered, record)
        self._steps_begun = record.number
        match record.status:
            case "error":
                raise record.error or ModelError(record.failure)
            case "ok":
                text = "" if record.message is None else record.message.text
                self.final = StreamEvent("final", {"ok": True, "text": text})
                return None
            case "auto_handoff":
                return Step(record.number + 1, self._prompt, entered=True)
            case "continue":
                return await self._following(Step(record.number, record.prompt))

    async def _step(self, models: OpenModels, step: Step) -> AsyncGenerator[StreamEvent, None]:
        """One step from its start to its end, and in `_next` what comes after it."""
        scope = self._scope
        began = time.monotonic()
        await scope.events.emit(
            StepStarted(**scope.where, step=step.number, prompt=step.prompt, resumed=step.record is not None)
        )
        yield StreamEvent("step", {"step": step.number})
        exchange = Exchange(scope, models, step)
        try:
            async with aclosing(exchange.events()) as events:
                async for event in events:
                    if event.kind == "final":
                        self.final = event
                    else:
                        yield event
            handoff = await self._after_silence(exchange, step)
        except ContextOverflow as error:
            handoff = await self._handoff(exchange, step, REFUSED, error)
            if handoff is None:
                await self._step_finished(step, "error", began, _described(error))
                raise
        except Exception as error:
            await self._step_finished(step, "error", began, _described(error))
            raise
        if handoff is not None:
            error_text = None if exchange.chat.error is None else str(exchange.chat.error)
            await self._step_finished(step, "auto_handoff", began, error_text)
            yield handoff
            self._next = Step(step.number + 1, self._prompt, entered=True)
        elif "tool_calls" in self.final.data or await self._is_addressed():
            if (granted := await self._granted(exchange, step)) is not None:
                yield granted
            self._next = await self._following(step)
            await self._step_finished(step, "continue", began)
            yield self.final
        else:
            await self._step_finished(step, "ok", began)
            self._next = None

    async def _after_silence(self, exchange: Exchange, step: Step) -> StreamEvent | None:
        """The handoff that an empty answer leads to, if the budget asks for one: so some providers refuse (208)."""
        message = exchange.chat.message
        if message is None or message.text or message.tool_calls:
            return None
        if step.record is None or not step.record.handed_off:
            tape = self._scope.tape
            size = ContextSize.of(await tape.context.entries(tape.query()), exchange.finish_reason)
            if not await self._scope.hooks.over_budget(tape, size):
                return None
        return await self._handoff(exchange, step, OVER_BUDGET)

    async def _handoff(
        self, exchange: Exchange, step: Step, reason: str, error: ContextOverflow | None = None
    ) -> StreamEvent | None:
        """Hand off, unless an earlier attempt did; None if the run has no handoff left, or none would help."""
        scope = self._scope
        if step.record is not None and step.record.handed_off:
            return StreamEvent("handoff", Handoff.automatic(reason, error).data)
        messages = exchange.view_messages or len(await scope.tape.read_messages())
        if not scope.may_hand_off(messages):
            return None
        return StreamEvent("handoff", (await scope.hand_off(reason, error)).data)

    async def _granted(self, exchange: Exchange, step: Step) -> StreamEvent | None:
        """Do what a tool asked of the loop, now that its result is recorded, unless an earlier attempt did."""
        wish = await exchange.wish()
        if wish is None or (step.record is not None and step.record.handed_off):
            return None
        asked_for, result = wish
        if asked_for == "reset":
            await self._scope.grant_reset(step.number)
            return None
        return StreamEvent("handoff", (await self._scope.grant_handoff(result)).data)

    async def _is_addressed(self) -> bool:
        """Whether messages wait for the run, which then goes on after an answer."""
        scope = self._scope
        if scope.inbox is not None and await scope.inbox.waiting():
            return True
        return await scope.hooks.has_pending_messages(scope.tape)

    async def _following(self, step: Step) -> Step:
        prompt = await self._scope.hooks.continue_prompt(self._scope.tape, step.prompt)
        return Step(step.number + 1, None if prompt is None else prompt_parts(prompt))

    async def _step_finished(self, step: Step, status: StepStatus, began: float, error: str | None = None) -> None:
        await self._scope.events.emit(
            StepFinished(**self._scope.where, step=step.number, status=status, elapsed_ms=_ms_since(began), error=error)
        )


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, BubError) else f"{type(error).__name__}: {error}".removesuffix(": ")


def _ms_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
