"""Events: what handlers are told, in which order, and what they may decide."""

from dataclasses import replace
from typing import Any

import republic

from bub_redis.agent import Agent, EventBus, TapeRecorder, events
from bub_redis.errors import InvalidInput, NotFound
from bub_redis.tape import InMemoryTapeStore, Tape
from bub_redis.testing import ScriptedModel, call, calls, say
from tests.pure.runs import TAPE, answered, entries, played, results


def add(a: int, b: int) -> int:
    return a + b


def adding(*replies: Any) -> Agent:
    return Agent(model=ScriptedModel(*(replies or (call("add", a=1, b=2), say("3")))), tools=[add])


async def test_a_handler_of_the_base_class_hears_everything_in_order() -> None:  # case 58
    agent = adding()
    heard: list[str] = []
    agent.events.on(events.AgentEvent, lambda event: heard.append(type(event).__name__))
    await played(agent)
    assert heard == [
        "RunStarted",
        *("StepStarted", "ChatStarted", "LLMCallStarted", "LLMCallFinished"),
        *("ToolCallStarted", "ToolCallFinished", "ChatFinished", "StepFinished"),
        *("StepStarted", "ChatStarted", "LLMCallStarted", "LLMCallFinished", "ChatFinished", "StepFinished"),
        "RunFinished",
    ]


async def test_handlers_sync_and_async_are_called_in_the_order_of_registration() -> None:
    agent = adding(say("ok"))
    heard = []

    async def second(event: events.RunStarted) -> None:
        heard.append("second")

    agent.events.on(events.RunStarted, lambda _: heard.append("first"))
    agent.events.on(events.RunStarted, second)
    agent.events.on(events.AgentEvent, lambda _: heard.append("any") if len(heard) < 3 else None)
    await played(agent)
    assert heard == ["first", "second", "any"]


async def test_a_call_is_told_before_its_result_also_when_it_fails() -> None:  # case 58
    def broken() -> None:
        raise RuntimeError("no")

    agent = Agent(model=ScriptedModel(calls(call("broken"), call("nope")), say("ok")), tools=[broken])
    told: list[tuple[str, str]] = []
    agent.events.on(events.ToolCallStarted, lambda event: told.append(("started", event.call.tool)))
    agent.events.on(events.ToolCallFinished, lambda event: told.append(("finished", event.call.tool)))
    await played(agent)
    for name in ("broken", "nope"):
        assert told.index(("started", name)) < told.index(("finished", name))


async def test_the_state_is_one_for_handlers_tools_and_prompts() -> None:
    agent = adding(say("ok"))
    state = {"user": "Ada"}
    seen: list[Any] = []
    agent.events.on(events.AgentEvent, lambda event: seen.append(event.state))
    await played(agent, state=state)
    assert all(one is state for one in seen)


async def test_a_handler_may_rewrite_the_request() -> None:
    model = ScriptedModel(say("ok"))
    agent = Agent(model=model)

    def rewrite(event: events.LLMCallStarted) -> None:
        note = republic.system("It is Sunday.")
        event.request = replace(event.request, messages=(note, *event.request.messages), options={"seed": 7})

    agent.events.on(events.LLMCallStarted, rewrite)
    await played(agent)
    assert model.requests[0].messages[0]["content"] == "It is Sunday."
    assert model.requests[0].options["seed"] == 7
    assert len(await entries(agent, "message")) == 2  # the tape holds what was said, not what was made of it


async def test_a_handler_may_finish_without_calling_the_model() -> None:
    model = ScriptedModel(say("never"))
    agent = Agent(model=model)
    asked_later: list[events.LLMCallStarted] = []

    def finish(event: events.LLMCallStarted) -> None:
        event.decision = events.LLMCallDecision.finish("closed on Sundays")

    agent.events.on(events.LLMCallStarted, finish)
    agent.events.on(events.LLMCallStarted, asked_later.append)
    assert await answered(agent) == "closed on Sundays"
    assert (model.requests, asked_later) == ([], [])
    assert [entry.payload["content"] for entry in await entries(agent, "message")] == ["Hello", "closed on Sundays"]


async def test_a_handler_may_change_the_arguments() -> None:
    agent = adding()

    def change(event: events.ToolCallStarted) -> None:
        event.call = replace(event.call, arguments={"a": 10, "b": 20})

    agent.events.on(events.ToolCallStarted, change)
    await played(agent)
    assert await results(agent) == [30]


async def test_a_handler_may_answer_in_place_of_the_tool() -> None:
    agent = adding()

    def answer(event: events.ToolCallStarted) -> None:
        event.decision = events.ToolCallDecision.replace({"sum": 99})

    agent.events.on(events.ToolCallStarted, answer)
    await played(agent)
    assert await results(agent) == [{"sum": 99}]


async def test_a_handler_may_deny_a_call_and_the_model_reads_why() -> None:
    agent = adding()

    def deny(event: events.ToolCallStarted) -> None:
        event.decision = events.ToolCallDecision.deny("adding is for members")

    agent.events.on(events.ToolCallStarted, deny)
    await played(agent)
    assert await results(agent) == [{"kind": "tool", "message": "adding is for members"}]


async def test_a_handler_may_replace_a_result_before_it_is_recorded() -> None:
    agent = adding()

    def replace_result(event: events.ToolCallFinished) -> None:
        event.result = {"was": event.result}

    agent.events.on(events.ToolCallFinished, replace_result)
    streamed = await played(agent)
    assert await results(agent) == [{"was": 3}]
    assert [e.data["tool_results"] for e in streamed if e.kind == "tool_result"] == [[{"was": 3}]]


async def test_what_went_wrong_in_a_call_is_told_to_handlers() -> None:
    asked = calls(call("add", a=1, b=2, _id="good"), call("add", a="x", b=2, _id="bad"), call("nope", _id="none"))
    agent = adding(asked, say("ok"))
    errors: dict[str, BaseException | None] = {}

    def note(event: events.ToolCallFinished) -> None:
        errors[event.call.id] = event.error

    agent.events.on(events.ToolCallFinished, note)
    await played(agent)
    assert errors["good"] is None
    assert isinstance(errors["bad"], InvalidInput)
    assert isinstance(errors["none"], NotFound)


async def test_a_response_is_recorded_before_its_tools_run() -> None:
    agent = adding()
    on_tape: list[str] = []

    async def look(event: events.ToolCallStarted) -> None:
        on_tape.extend(entry.kind for entry in await event.tape.query().kinds("tool_call", "tool_result").all())

    agent.events.on(events.ToolCallStarted, look)
    await played(agent)
    assert on_tape == ["tool_call"]


async def test_what_a_provider_needs_back_is_recorded_and_replayed() -> None:
    said = republic.Message(
        "assistant",
        (
            republic.Text("Let me see."),
            republic.Reasoning("hm"),
            republic.ProviderData("messages", {"type": "thinking", "signature": "s"}),
        ),
        tool_calls=(republic.ToolCall("c1", "add", "{}", {"thought_signature": "t"}),),
    )
    tape, bus = Tape(TAPE, InMemoryTapeStore()), EventBus()
    TapeRecorder().subscribe(bus)
    request = events.LLMCallRequest(messages=(), options={}, model="scripted:scripted")
    result = events.LLMCallResult(message=said, usage=None)
    await bus.emit(events.LLMCallFinished(tape=tape, run_id="r", step=1, request=request, result=result))
    (entry,) = await tape.query().all()
    assert entry.payload == {
        "calls": [{"id": "c1", "name": "add", "arguments": "{}", "metadata": {"thought_signature": "t"}}],
        "content": "Let me see.",
        "reasoning": "hm",
        "provider_data": [{"api_format": "messages", "payload": {"type": "thinking", "signature": "s"}}],
    }
    assert (await tape.read_messages())[0] == said
