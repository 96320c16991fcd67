"""The recorder: a subscriber like any other, which writes what happens in a run onto its tape."""

from dataclasses import asdict
from typing import Any

import republic

from bub_redis.agent.events import (
    ChatFinished,
    ChatStarted,
    EventBus,
    LLMCallFinished,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
)
from bub_redis.agent.prompt import prompt_content
from bub_redis.agent.steering import steer_entry
from bub_redis.tape import TapeEntry
from bub_redis.tape.entry import now_iso


class TapeRecorder:
    """Append the conversation and the loop's progress to the tape of the event, each as soon as it is known.

    The prompt is on the tape before the model sees it (case 128), a response before its tools run. What
    belongs to one moment is appended as one unit. Every entry carries the run's id in its meta.
    """

    def subscribe(self, events: EventBus) -> None:
        """Record what `events` delivers. The agent's own recorder is the first of all handlers."""
        events.on(RunStarted, self._run_started)
        events.on(StepStarted, self._step_started)
        events.on(ChatStarted, self._chat_started)
        events.on(LLMCallFinished, self._llm_call_finished)
        events.on(ChatFinished, self._chat_finished)
        events.on(StepFinished, self._step_finished)
        events.on(RunFinished, self._run_finished)

    async def _run_started(self, event: RunStarted) -> None:
        if event.resumed:
            return
        data = {"model": event.model, "prompt": prompt_content(event.prompt), **event.metadata}
        await event.tape.append_event("loop.start", data, run_id=event.run_id)

    async def _step_started(self, event: StepStarted) -> None:
        if event.resumed:
            return
        prompt = None if event.prompt is None else prompt_content(event.prompt)
        data = {"step": event.step, "prompt": prompt}
        await event.tape.append_event("loop.step.start", data, run_id=event.run_id)

    async def _chat_started(self, event: ChatStarted) -> None:
        told = event.new_messages[: len(event.new_messages) - len(event.steers)]
        entries = [TapeEntry.message(message.to_dict(), run_id=event.run_id) for message in told]
        entries += [steer_entry(steer, run_id=event.run_id) for steer in event.steers]
        if event.system_prompt and event.system_changed:
            entries.insert(0, TapeEntry.system(event.system_prompt, run_id=event.run_id))
        if entries:
            await event.tape.append(*entries)

    async def _llm_call_finished(self, event: LLMCallFinished) -> None:
        message = event.result.message
        if message is not None:
            await event.tape.append(_response_entry(message, event.run_id))

    async def _chat_finished(self, event: ChatFinished) -> None:
        entries = []
        if event.call_ids:
            entries.append(TapeEntry.tool_result(event.tool_results, event.call_ids, run_id=event.run_id))
        if event.error is not None:
            entries.append(TapeEntry.error(event.error.kind, str(event.error), run_id=event.run_id))
        data: dict[str, Any] = {"status": "ok" if event.error is None else "error"}
        if event.usage is not None:
            data["usage"] = dict(event.usage)
        data |= {"provider": event.provider, "model": event.model}
        await event.tape.append(*entries, TapeEntry.event("run", data, run_id=event.run_id))

    async def _step_finished(self, event: StepFinished) -> None:
        data: dict[str, Any] = {"step": event.step, "elapsed_ms": event.elapsed_ms, "status": event.status}
        await event.tape.append_event("loop.step", data | _ending(event.error), run_id=event.run_id)

    async def _run_finished(self, event: RunFinished) -> None:
        if event.resumed:
            return
        data: dict[str, Any] = {"status": event.status, "steps": event.steps, "elapsed_ms": event.elapsed_ms}
        await event.tape.append_event("loop.finish", data | _ending(event.error), run_id=event.run_id)


def _ending(error: str | None) -> dict[str, Any]:
    return ({} if error is None else {"error": error}) | {"date": now_iso()}


def _response_entry(message: republic.Message, run_id: str) -> TapeEntry:
    """A message, or, if the model asked for tools, its calls with what it said beside them (case 23)."""
    if not message.tool_calls:
        return TapeEntry.message(message.to_dict(), run_id=run_id)
    provider_data = [asdict(part) for part in message.parts if isinstance(part, republic.ProviderData)]
    extra = {"reasoning": message.reasoning, "provider_data": provider_data}
    said = tuple(part for part in message.parts if not isinstance(part, republic.Reasoning | republic.ProviderData))
    return TapeEntry.tool_call(
        message.to_dict()["tool_calls"],
        content=republic.Message("assistant", said).to_dict().get("content", ""),
        extra={key: value for key, value in extra.items() if value},
        run_id=run_id,
    )
