"""How a run ends, and what is on its tape then: an answer, an error, an early exit or a cancel."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bub_redis.agent import Agent
from bub_redis.agent.events import ChatFinished, LLMCallStarted, RunFinished, RunStarted, ToolCallStarted
from bub_redis.errors import ModelError
from bub_redis.testing import ScriptedModel, call, calls, cut, fail, garbage, say, stall
from tests.pure.runs import TAPE, entries, events, played, results


def worker_that_notes(ran: list[str]) -> Callable[[], str]:
    def work() -> str:
        ran.append("work")
        return "done"

    return work


async def statuses(agent: Agent) -> dict[str, list[str]]:
    """What each level of the last run says about its end."""
    names = ("run", "loop.step", "loop.finish", "turn.receipt")
    return {name: [data["status"] for data in await events(agent, name)] for name in names}


async def test_a_failed_model_call_leaves_the_prompt_and_the_reason() -> None:  # cases 128 and 49
    agent = Agent(model=ScriptedModel(fail(400, {"error": {"message": "no such luck"}})))
    with pytest.raises(ModelError, match="no such luck"):
        await played(agent, "Hello")
    assert [entry.payload for entry in await entries(agent, "message")] == [{"role": "user", "content": "Hello"}]
    (error,) = await entries(agent, "error")
    assert error.payload["kind"] == "provider"
    assert "no such luck" in error.payload["message"]
    assert await statuses(agent) == {
        "run": ["error"],
        "loop.step": ["error"],
        "loop.finish": ["error"],
        "turn.receipt": ["failed"],
    }
    assert "no such luck" in (await events(agent, "loop.step"))[0]["error"]
    assert "no such luck" in (await events(agent, "loop.finish"))[0]["error"]


async def test_the_prompt_is_on_the_tape_before_the_model_is_asked() -> None:  # case 128
    agent = Agent(model=ScriptedModel(say("ok")))
    recorded: list[Any] = []

    async def look(event: LLMCallStarted) -> None:
        recorded.extend(await event.tape.query().kinds("message").all())

    agent.events.on(LLMCallStarted, look)
    await played(agent, "Hello")
    assert [entry.payload["content"] for entry in recorded] == ["Hello"]


async def test_an_error_is_streamed_once_all_is_merged_and_then_raised() -> None:
    agent = Agent(model=ScriptedModel(fail(500, "down")))
    kinds = []
    with pytest.raises(ModelError):
        async with agent.run("Hello", tape=TAPE) as stream:
            async for event in stream:
                kinds.append(event.kind)
                if event.kind == "error":
                    assert [receipt["status"] for receipt in await events(agent, "turn.receipt")] == ["failed"]
    assert kinds == ["step", "error"]


@pytest.mark.parametrize("broken", [cut("Half of an"), garbage("Half of an")])
async def test_an_answer_that_breaks_off_is_no_answer(broken: Any) -> None:
    agent = Agent(model=ScriptedModel(broken, say("whole")))
    with pytest.raises(ModelError):
        await played(agent)
    assert [entry.payload["role"] for entry in await entries(agent, "message")] == ["user"]
    assert (await statuses(agent))["turn.receipt"] == ["failed"]
    await played(agent, "again")
    assert (await statuses(agent))["turn.receipt"] == ["failed", "completed"]


async def test_leaving_early_cancels_the_run_and_keeps_what_there_was() -> None:  # case 102
    agent = Agent(model=ScriptedModel(say("a b c")))
    async with agent.run("Hello", tape=TAPE) as stream:
        async for event in stream:
            if event.kind == "text":
                break
    assert [entry.payload["content"] for entry in await entries(agent, "message")] == ["Hello"]
    assert await statuses(agent) == {
        "run": [],
        "loop.step": [],
        "loop.finish": ["cancelled"],
        "turn.receipt": ["cancelled"],
    }


async def test_leaving_before_the_tools_ran_closes_their_calls() -> None:  # cases 102, 103 and 155
    ran: list[str] = []
    model = ScriptedModel(call("work"), say("ok"))
    agent = Agent(model=model, tools=[worker_that_notes(ran)])
    async with agent.run("Hello", tape=TAPE) as stream:
        async for event in stream:
            if event.kind == "tool_call":
                break
    assert ran == []
    assert await results(agent) == ["interrupted: this call was cut off before its result was known"]
    await played(agent, "go on")
    assert [message["role"] for message in model.requests[1].messages] == ["user", "assistant", "tool", "user"]


async def test_cancelling_the_task_cancels_the_run() -> None:
    agent = Agent(model=ScriptedModel(stall(60, after="one moment")))
    asked = asyncio.Event()
    agent.events.on(LLMCallStarted, lambda _: asked.set())
    running = asyncio.create_task(played(agent))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await statuses(agent))["loop.finish"] == ["cancelled"]
    assert (await statuses(agent))["turn.receipt"] == ["cancelled"]


async def test_an_error_of_the_callers_own_cancels_the_run_and_passes() -> None:
    agent = Agent(model=ScriptedModel(say("a b c")))
    with pytest.raises(ZeroDivisionError):
        async with agent.run("Hello", tape=TAPE) as stream:
            async for _event in stream:
                raise ZeroDivisionError
    assert (await statuses(agent))["turn.receipt"] == ["cancelled"]


async def test_the_session_is_free_after_every_end() -> None:  # case 102
    agent = Agent(model=ScriptedModel(fail(500, "down"), say("a b"), say("ok")))
    with pytest.raises(ModelError):
        await played(agent)
    async with agent.run("Hello", tape=TAPE) as stream:
        async for _event in stream:
            break
    await played(agent)
    assert (await statuses(agent))["turn.receipt"] == ["failed", "cancelled", "completed"]


async def test_a_stream_that_nobody_iterates_writes_nothing() -> None:
    agent = Agent(model=ScriptedModel(say("never")))
    async with agent.run("Hello", tape=TAPE):
        pass
    stream = await agent.start("Hello", tape=TAPE)
    await stream.aclose()
    assert await entries(agent) == []


async def test_a_stream_may_be_closed_in_another_task() -> None:  # case 13
    agent = Agent(model=ScriptedModel(say("a b c")))
    stream = await agent.start("Hello", tape=TAPE)
    await asyncio.create_task(anext(stream))
    await asyncio.create_task(stream.aclose())
    assert (await statuses(agent))["turn.receipt"] == ["cancelled"]


async def test_what_a_handler_raises_ends_the_run() -> None:
    def veto(event: ToolCallStarted) -> None:
        raise PermissionError("not on a Sunday")

    agent = Agent(model=ScriptedModel(calls(call("work"), call("work"))), tools=[worker_that_notes([])])
    agent.events.on(ToolCallStarted, veto)
    with pytest.raises(PermissionError, match="not on a Sunday"):
        await played(agent)
    assert (await events(agent, "loop.finish"))[0]["error"] == "PermissionError: not on a Sunday"
    assert len(await results(agent)) == 2  # closed by the merge


async def test_a_whole_response_is_accounted_for_however_its_tools_end() -> None:
    def veto(event: ToolCallStarted) -> None:
        raise PermissionError

    seen: list[ChatFinished] = []
    agent = Agent(model=ScriptedModel(calls(call("work"), usage=(10, 2))), tools=[worker_that_notes([])])
    agent.events.on(ToolCallStarted, veto)
    agent.events.on(ChatFinished, seen.append)
    with pytest.raises(PermissionError):
        await played(agent)
    assert [data["usage"]["total_tokens"] for data in await events(agent, "run")] == [12]
    assert (await events(agent, "turn.receipt"))[0]["usage"]["total_tokens"] == 12
    assert len(seen) == 1


async def test_every_started_run_finishes_once() -> None:
    agent = Agent(model=ScriptedModel(say("ok"), fail(500, "down"), say("a b")))
    counted = {RunStarted: 0, RunFinished: 0}

    def count(event: RunStarted | RunFinished) -> None:
        counted[type(event)] += 1

    agent.events.on(RunStarted, count)
    agent.events.on(RunFinished, count)
    await played(agent)
    with pytest.raises(ModelError):
        await played(agent)
    async with agent.run("Hello", tape=TAPE) as stream:
        async for _event in stream:
            break
    assert counted == {RunStarted: 3, RunFinished: 3}
