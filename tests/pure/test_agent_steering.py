"""Steering: messages that arrive while a run is under way enter before its next model call."""

from collections.abc import Sequence
from typing import Any

import pytest

from bub_redis.agent import Agent, MemoryInbox, Prompt, Steer, events
from bub_redis.agent.prompt import UserContent
from bub_redis.errors import InvalidInput
from bub_redis.tape import Tape
from bub_redis.testing import ModelRequest, ScriptedModel, call, say
from tests.pure.runs import TAPE, answered, entries, played
from tests.pure.runs import events as recorded


def ping() -> str:
    return "pong"


def steered(inbox: MemoryInbox, at: int, *replies: Any) -> ScriptedModel:
    """A model during whose answer number `at` a message arrives."""
    script = iter(replies)
    asked = 0

    def answer(_request: ModelRequest) -> Any:
        nonlocal asked
        asked += 1
        if asked == at:
            inbox.put("in English", id="s1")
        return next(script)

    return ScriptedModel(answer)


async def test_a_message_that_arrives_enters_before_the_next_model_call() -> None:
    inbox = MemoryInbox()
    model = steered(inbox, 1, call("ping"), say("Done."))
    streamed = await played(Agent(model=model, tools=[ping]), "Go", inbox=inbox)
    assert [message["role"] for message in model.requests[1].messages] == ["user", "assistant", "tool", "user"]
    assert model.requests[1].messages[-1]["content"] == "in English"
    assert [event.data for event in streamed if event.kind == "steered"] == [{"messages": ["in English"]}]
    assert [event.kind for event in streamed if event.kind in {"step", "steered", "final"}] == [
        "step",
        "final",
        "step",
        "steered",
        "final",
    ]


async def test_a_message_that_arrives_during_the_answer_is_answered_in_the_same_run() -> None:
    """Case 134."""
    inbox = MemoryInbox()
    agent = Agent(model=steered(inbox, 1, say("Fertig."), say("Done.")))
    assert await answered(agent, "Go", inbox=inbox) == "Done."
    assert [data["status"] for data in await recorded(agent, "loop.step")] == ["continue", "ok"]
    assert len(await recorded(agent, "loop.start")) == 1


async def test_a_message_that_waits_from_the_start_comes_after_the_prompt() -> None:
    inbox = MemoryInbox()
    inbox.put("in English")
    model = ScriptedModel(say("Done."))
    await played(Agent(model=model), "Go", inbox=inbox)
    assert [message["content"] for message in model.requests[0].messages] == ["Go", "in English"]
    assert list(await inbox.waiting()) == []


async def test_an_entry_names_the_senders_id() -> None:
    inbox = MemoryInbox()
    inbox.put("a", id="s1")
    inbox.put("b")
    agent = Agent(model=ScriptedModel(say("ok")))
    await played(agent, "Go", inbox=inbox)
    assert [entry.meta.get("steer") for entry in await entries(agent, "message")] == [None, "s1", True, None]


async def test_a_message_is_taken_only_when_it_is_recorded() -> None:
    """Case 129."""
    inbox = MemoryInbox()
    inbox.put("in English")
    agent = Agent(model=ScriptedModel(say("never")))

    def fail(_event: events.ChatStarted) -> None:
        raise OSError("disk full")

    agent.events.on(events.ChatStarted, fail)
    with pytest.raises(OSError, match="disk full"):
        await played(agent, "Go", inbox=inbox)
    assert list(await inbox.waiting()) == [Steer("in English")]


async def test_an_empty_message_is_refused_where_it_is_put() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        MemoryInbox().put(" ")


# The same by hooks


class Interrupted(Agent):
    def __init__(self, *pending: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pending = list(pending)

    async def pending_messages(self, tape: Tape) -> Sequence[Prompt]:
        taken, self.pending = self.pending[:1], self.pending[1:]
        return taken

    async def has_pending_messages(self, tape: Tape) -> bool:
        return bool(self.pending)


async def test_hooks_may_bring_messages_too() -> None:
    model = ScriptedModel(say("one"), say("two"))
    agent = Interrupted("a", "b", model=model)
    assert await answered(agent, "Go") == "two"
    assert [message["content"] for message in model.requests[1].messages] == ["Go", "a", "one", "b"]


async def test_a_hook_may_give_the_next_step_a_prompt() -> None:
    class Insisting(Agent):
        async def continue_prompt(self, tape: Tape, prompt: Sequence[UserContent] | None) -> Prompt | None:
            return "Go on." if prompt == ("Go",) else None

    model = ScriptedModel(call("ping"), call("ping"), say("ok"))
    agent = Insisting(model=model, tools=[ping])
    await played(agent, "Go")
    assert [data["prompt"] for data in await recorded(agent, "loop.step.start")] == ["Go", "Go on.", None]
    assert model.requests[2].messages[3] == {"role": "user", "content": "Go on."}


async def test_a_hook_chooses_the_tools_of_each_step() -> None:
    class Narrowing(Agent):
        async def prepare_tools(self, tape: Tape, prompt: Sequence[UserContent] | None) -> Any:
            return [] if prompt is None else await super().prepare_tools(tape, prompt)

    model = ScriptedModel(call("ping"), call("ping"), say("ok"))
    agent = Narrowing(model=model, tools=[ping])
    await played(agent, "Go")
    assert [len(request.tools) for request in model.requests] == [1, 0, 0]
    first, second = [entry.payload["results"] for entry in await entries(agent, "tool_result")]
    assert first == ["pong"]
    assert "there is no tool 'ping'; the tools are: none" in second[0]["message"]


async def test_handlers_of_one_run_come_after_the_agents_and_see_what_those_made() -> None:
    agent = Agent(model=ScriptedModel(call("ping"), say("ok")), tools=[ping])
    heard: list[Any] = []

    def shout(event: events.ToolCallFinished) -> None:
        event.result = {"said": {1, 2}}

    own = events.EventBus()
    own.on(events.ToolCallFinished, lambda event: heard.append((event.result, event.step)))
    own.on(events.ToolCallStarted, lambda event: heard.append(event.call.context.idempotency_key))
    agent.events.on(events.ToolCallFinished, shout)
    async with agent.session(TAPE) as tape:
        _ = [event async for event in await agent.run_on(tape, "Go", run_id="r", events=own)]
    assert heard == [f"{TAPE}/r/1/0", ({"said": [1, 2]}, 1)]
