"""What is said to a model: prompts, and system prompts rendered anew for each step."""

import pytest

from bub_redis.agent import Agent, Prompt, PromptContext
from bub_redis.errors import InvalidInput
from bub_redis.testing import ScriptedModel, call, say
from tests.pure.runs import TAPE, entries, played


def note(text: str) -> str:
    return text


@pytest.mark.parametrize("prompt", ["", " \n\t ", [], ["", " "]])
async def test_an_empty_prompt_is_refused_before_anything_is_written(prompt: Prompt) -> None:
    agent = Agent(model=ScriptedModel(say("never")))
    with pytest.raises(InvalidInput, match="the prompt is empty"):
        await agent.start(prompt, tape=TAPE)
    assert await entries(agent) == []


async def test_a_prompt_of_anything_else_is_refused() -> None:
    agent = Agent(model=ScriptedModel(say("never")))
    with pytest.raises(InvalidInput, match="not dict"):
        await agent.start([{"type": "text"}], tape=TAPE)  # type: ignore[list-item]


async def test_sections_are_texts_and_functions_in_their_order() -> None:
    async def tools(context: PromptContext) -> str:
        return "Tools: " + ", ".join(tool.name for tool in context.tools)

    def nothing(context: PromptContext) -> None: ...

    def user(context: PromptContext) -> str:
        return f"The user is {context.state['user']}."

    model = ScriptedModel(say("ok"))
    agent = Agent(model=model, tools=[note], system_prompt=["Be brief.", nothing, tools])
    agent.system_prompt.add(user)
    await played(agent, state={"user": "Ada"})
    assert model.requests[0].messages[0] == {
        "role": "system",
        "content": "Be brief.\n\nTools: note\n\nThe user is Ada.",
    }


async def test_a_section_is_rendered_for_each_step() -> None:
    model = ScriptedModel(call("note", text="x"), say("ok"))
    seen = []

    def section(context: PromptContext) -> str:
        seen.append((list(context.prompt), context.model))
        return "same"

    await played(Agent(model=model, tools=[note], system_prompt=section))
    assert seen == [(["Hello"], "scripted:scripted"), ([], "scripted:scripted")]


async def test_a_system_prompt_is_recorded_when_a_run_first_uses_it_and_when_it_changes() -> None:
    words = iter(["one", "one", "two"])
    model = ScriptedModel(call("note", text="x"), call("note", text="y"), say("ok"))
    agent = Agent(model=model, tools=[note], system_prompt=lambda _: next(words))
    await played(agent)
    assert [entry.payload["content"] for entry in await entries(agent, "system")] == ["one", "two"]
    assert [request.messages[0]["content"] for request in model.requests] == ["one", "one", "two"]


async def test_what_a_section_raises_ends_the_run_before_the_model_is_asked() -> None:
    def broken(context: PromptContext) -> str:
        raise KeyError("user")

    model = ScriptedModel(say("never"))
    with pytest.raises(KeyError, match="user"):
        await played(Agent(model=model, system_prompt=broken))
    assert model.requests == []
