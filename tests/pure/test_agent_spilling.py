"""Spilling in a run: the hook between a tool and its model, and the tool that reads what was spilled."""

import json
from typing import Any

import pytest

from bub_redis.agent import Agent, tool
from bub_redis.agent.events import ToolCallFinished
from bub_redis.tape import SpillStore, TapeSidecar
from bub_redis.testing import ModelRequest, Reply, ScriptedModel, call, say

LARGE = "x" * 40_000


@tool
def large() -> str:
    """Answer at length."""
    return LARGE


@tool
def failing() -> str:
    """Fail at length."""
    raise RuntimeError(LARGE)


def script(*names: str) -> ScriptedModel:
    """A model that calls these tools one after the other; `spill_read` gets the handle that was shown last."""

    def answer(request: ModelRequest) -> Reply:
        results = [message["content"] for message in request.messages if message["role"] == "tool"]
        if len(results) == len(names):
            return say("done")
        name = names[len(results)]
        if name != "spill_read":
            return call(name)
        shown = results[-1] if results else "handle='unknown'"
        return call(name, handle=shown.partition("handle='")[2].partition("'")[0], count=4)

    return ScriptedModel(answer)


async def results(*names: str, sidecars: list[TapeSidecar]) -> list[Any]:
    """What the tape holds of the results after a run that called these tools."""
    agent = Agent(model=script(*names), tools=[large, failing], sidecars=sidecars)
    async with agent.run("go", tape="t") as stream:
        async for _ in stream:
            pass
    found = await agent.tape("t").query().kinds("tool_result").all()
    return [result for entry in found for result in entry.payload["results"]]


async def test_a_large_result_never_enters_the_tape_whole() -> None:
    """Case 18."""
    (shown,) = await results("large", sidecars=[SpillStore()])
    assert "spill_read" in shown
    assert len(shown) < 1200


async def test_the_model_reads_on_by_the_handle_and_that_is_not_spilled_again() -> None:
    """Case 123: the reader's own result is bounded and ordinary."""
    _, page = await results("large", "spill_read", sidecars=[SpillStore()])
    assert page["content"] == LARGE
    assert (page["complete"], page["of"]) == (True, 3)


async def test_an_unknown_handle_is_told_to_the_model() -> None:
    (answer,) = await results("spill_read", sidecars=[SpillStore()])
    assert answer["kind"] == "not_found"
    assert "not stored" in answer["message"]


async def test_a_long_error_is_cut() -> None:
    """Case 123."""
    (problem,) = await results("failing", sidecars=[SpillStore()])
    assert problem["kind"] == "tool"
    assert problem["message"].startswith("RuntimeError")
    assert len(json.dumps(problem)) < 16_384


@pytest.mark.parametrize("sidecars", [[], [TapeSidecar("spill")]], ids=["none", "something else"])
async def test_without_a_spill_store_nothing_happens(sidecars: list[TapeSidecar]) -> None:
    """Case 55: something else under the name is no error."""
    assert await results("large", sidecars=sidecars) == [LARGE]


async def test_what_another_handler_puts_in_place_is_spilled_too() -> None:
    agent = Agent(model=script("failing"), tools=[failing], sidecars=[SpillStore()])

    def replace(event: ToolCallFinished) -> None:
        event.result, event.error = LARGE, None

    agent.events.on(ToolCallFinished, replace)
    async with agent.run("go", tape="t") as stream:
        async for _ in stream:
            pass
    (entry,) = await agent.tape("t").query().kinds("tool_result").all()
    assert "spill_read" in entry.payload["results"][0]
