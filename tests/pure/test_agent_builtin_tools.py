"""The tools with which a model looks at its own tape and begins a new context."""

import re
from typing import Any

import pytest

from bub_redis.agent import Agent
from bub_redis.agent.builtin_tools import tape_handoff, tape_reset, tape_tools
from bub_redis.tape.spill import SpillStore
from bub_redis.testing import ModelRequest, ScriptedModel, call, calls, say
from tests.pure.runs import TAPE, answered, entries, events, played, results


def texts(request: ModelRequest) -> list[Any]:
    return [message["content"] for message in request.messages]


def test_the_tools_and_their_names() -> None:
    names = ["tape.info", "tape.search", "tape.anchors", "tape.handoff", "tape.reset", "spill.read"]
    assert [tool.name for tool in tape_tools()] == names


async def test_a_model_may_ask_about_its_tape() -> None:
    script = iter([say("Blue.", usage=(7, 1)), calls(call("tape_info"), call("tape_anchors")), say("ok")])
    agent = Agent(model=ScriptedModel(lambda _: next(script)), tools=tape_tools())
    await played(agent, "Your colour?")
    await played(agent, "How long is this?")
    info, anchors = await results(agent)
    assert info["anchors"] == 1
    assert info["last_token_usage"] == 8
    assert [anchor["name"] for anchor in anchors["anchors"]] == ["session/start"]


async def test_a_model_may_search_what_it_no_longer_sees() -> None:
    script = iter([say("Blue."), call("tape_search", query="colour"), call("tape_search", query="colour"), say("ok")])
    agent = Agent(model=ScriptedModel(lambda _: next(script)), tools=tape_tools())
    await played(agent, "Your colour?")
    await agent.tape(TAPE).handoff(name="later")
    await played(agent, "Look it up")
    first, second = await results(agent)
    contents = [match["content"] for match in first["matches"]]
    assert {"role": "user", "content": "Your colour?"} in contents
    assert not any("results" in match["content"] for match in second["matches"])


@pytest.mark.parametrize("arguments", [{"query": "x", "limit": 0}, {"query": "x", "kinds": ["event"]}, {}])
async def test_a_search_that_cannot_be_is_told(arguments: dict[str, Any]) -> None:
    agent = Agent(model=ScriptedModel(call("tape_search", **arguments), say("ok")), tools=tape_tools())
    await played(agent)
    assert [result["kind"] for result in await results(agent)] == ["invalid_input"]


async def test_a_handoff_takes_place_after_the_step_and_keeps_the_request() -> None:
    model = ScriptedModel(
        say("Hi."), call("tape_handoff", summary="They greeted.", name="phase-1", _id="c1"), say("Fine.")
    )
    agent = Agent(model=model, tools=[tape_handoff])
    await played(agent, "Hello")
    streamed = await played(agent, "Tidy up")
    assert texts(model.requests[-1]) == ["They greeted.", "Tidy up"]
    assert [event.data["name"] for event in streamed if event.kind == "handoff"] == ["phase-1"]
    anchor = next(entry for entry in await entries(agent, "anchor") if entry.anchor_name == "phase-1")
    assert anchor.payload["state"] == {"summary": "They greeted."}
    calls_and_results = [entry.id for entry in await entries(agent, "tool_call", "tool_result")]
    assert max(calls_and_results) < anchor.id
    assert [data["status"] for data in await events(agent, "loop.step")] == ["ok", "continue", "ok"]


async def test_a_handoff_that_was_denied_does_not_take_place() -> None:
    model = ScriptedModel(call("tape_handoff", summary=5), say("Fine."))
    agent = Agent(model=model, tools=[tape_handoff])
    await played(agent, "Tidy up")
    assert len(await entries(agent, "anchor")) == 1


async def test_a_reset_takes_place_after_the_step_and_keeps_the_request() -> None:
    """Cases 7 and 29."""
    model = ScriptedModel(say("Hi."), call("tape_reset"), say("Forgotten."), say("Bye."))
    agent = Agent(model=model, tools=[tape_reset])
    await played(agent, "Hello")
    assert await answered(agent, "Forget me") == "Forgotten."
    assert texts(model.requests[2]) == ["The tape was reset, as you asked. What was said before is gone.", "Forget me"]
    assert "Hello" not in str([entry.payload for entry in await entries(agent)])
    await played(agent, "Good bye")
    assert texts(model.requests[3])[-2:] == ["Forgotten.", "Good bye"]


async def test_a_spilled_result_can_be_read_back() -> None:
    """Case 18."""
    content = "".join(f"line {number}\n" for number in range(5_000))

    def script(request: ModelRequest) -> Any:
        match request.tool_results:
            case []:
                return call("report")
            case [preview]:
                handle = re.search(r"handle='(\w+)'", preview)
                assert handle
                return call("spill_read", handle=handle[1], count=4)
            case _:
                return say("Read.")

    def report() -> str:
        return content

    agent = Agent(model=ScriptedModel(script), tools=[report], sidecars=[SpillStore()])
    assert await answered(agent) == "Read."
    preview, page = await results(agent)
    assert "stored in" in preview
    assert len(preview) < 1_200
    assert page["content"] == content


async def test_the_reader_of_spilled_results_comes_with_their_store() -> None:
    for sidecars, offered in (([SpillStore()], ["spill_read"]), ([], [])):
        model = ScriptedModel(say("ok"))
        await played(Agent(model=model, sidecars=sidecars))
        assert [tool["function"]["name"] for tool in model.requests[0].tools] == offered
