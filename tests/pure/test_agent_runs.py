"""An agent answers on a tape: the first page to read about it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import republic

from bub_redis.agent import Agent, PromptContext, StreamEvent
from bub_redis.errors import InvalidInput, NotFound
from bub_redis.tape import (
    FileTapeStore,
    InMemoryTapeStore,
    TapeContext,
    TapeEntry,
    default_tape_context,
    openai_messages,
)
from bub_redis.testing import ModelRequest, ScriptedModel, call, calls, fail, say
from tests.pure.runs import TAPE, answered, entries, events, played, results


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_an_agent_answers() -> None:
    agent = Agent(model=ScriptedModel(say("Hello, you!")))
    async with agent.run("Hello", tape="customer-42") as stream:
        pieces = [event.data["delta"] async for event in stream if event.kind == "text"]
    assert pieces == ["Hello, ", "you!"]


async def test_the_final_event_holds_the_whole_answer() -> None:
    events_seen = await played(Agent(model=ScriptedModel(say("Hello, you!"))))
    assert events_seen[-1] == StreamEvent("final", {"ok": True, "text": "Hello, you!"})


async def test_the_final_event_comes_when_all_is_merged() -> None:
    agent = Agent(model=ScriptedModel(say("done")))
    async with agent.run("Hello", tape=TAPE) as stream:
        async for event in stream:
            if event.kind == "final":
                assert [finish["status"] for finish in await events(agent, "loop.finish")] == ["ok"]
                break
    assert [receipt["status"] for receipt in await events(agent, "turn.receipt")] == ["completed"]


async def test_the_next_run_sees_the_conversation_so_far() -> None:
    model = ScriptedModel(say("Blue."), say("You asked for my colour."))
    agent = Agent(model=model)
    await played(agent, "Your colour?")
    await played(agent, "What did I ask?")
    assert [message["content"] for message in model.requests[1].messages] == [
        "Your colour?",
        "Blue.",
        "What did I ask?",
    ]


async def test_a_prompt_stands_in_the_model_call_once() -> None:  # case 32
    model = ScriptedModel(say("yes"))
    await played(Agent(model=model), "only once")
    assert model.requests[0].messages == [{"role": "user", "content": "only once"}]


async def test_the_same_words_twice_are_two_messages() -> None:  # cases 165 and 166
    model = ScriptedModel(say("ok"), say("ok"))
    agent = Agent(model=model)
    await played(agent, "yes")
    await played(agent, "yes")
    assert [message["content"] for message in model.requests[1].messages] == ["yes", "ok", "yes"]


async def test_what_a_run_with_tools_writes_is_what_bub_writes() -> None:  # case 182: in the order of the events
    model = ScriptedModel(
        calls(call("add", a=1, b=2, _id="c1"), text="Let me see.", usage=(10, 4)), say("It is 3.", usage=(15, 3))
    )
    agent = Agent(model=model, tools=[add], system_prompt="Be brief.")
    await played(agent, "1 + 2?", metadata={"channel": "web"})

    def told(entry: TapeEntry) -> tuple[str, Any]:
        payload = {key: value for key, value in entry.payload.items() if key != "name"}
        data = payload.pop("data", {})
        kept = {key: value for key, value in data.items() if key not in {"elapsed_ms", "date"}}
        return entry.payload.get("name", entry.kind), payload | kept

    usage = {"reasoning_tokens": 0, "cached_tokens": 0, "cache_write_tokens": 0}
    run = {"status": "ok", "provider": "scripted", "model": "scripted:scripted"}
    assert [told(entry) for entry in await entries(agent)][:-1] == [
        ("session/start", {"state": {"owner": "human"}}),
        ("handoff", {"name": "session/start", "state": {"owner": "human"}}),
        ("loop.start", {"model": "scripted:scripted", "prompt": "1 + 2?", "channel": "web"}),
        ("loop.step.start", {"step": 1, "prompt": "1 + 2?"}),
        ("system", {"content": "Be brief."}),
        ("message", {"role": "user", "content": "1 + 2?"}),
        (
            "tool_call",
            {"calls": [{"id": "c1", "name": "add", "arguments": '{"a": 1, "b": 2}'}], "content": "Let me see."},
        ),
        ("tool_result", {"results": [3], "call_ids": ["c1"]}),
        ("run", run | {"usage": usage | {"input_tokens": 10, "output_tokens": 4, "total_tokens": 14}}),
        ("loop.step", {"step": 1, "status": "continue"}),
        ("loop.step.start", {"step": 2, "prompt": None}),
        ("message", {"role": "assistant", "content": "It is 3."}),
        ("run", run | {"usage": usage | {"input_tokens": 15, "output_tokens": 3, "total_tokens": 18}}),
        ("loop.step", {"step": 2, "status": "ok"}),
        ("loop.finish", {"status": "ok", "steps": 2}),
    ]


async def test_every_entry_of_a_run_carries_its_id_and_the_receipt_names_it() -> None:
    agent = Agent(model=ScriptedModel(say("ok")))
    await played(agent)
    block = [entry for entry in await entries(agent) if "run_id" in entry.meta]
    receipt = (await events(agent, "turn.receipt"))[0]
    assert {entry.meta["run_id"] for entry in block} == {receipt["turn"]}
    assert len(block) == receipt["entries"]


async def test_text_beside_calls_is_not_the_answer() -> None:  # cases 48 and 23
    model = ScriptedModel(calls(call("add", a=1, b=2), text="It may be 4."), say("It is 3."))
    assert await answered(Agent(model=model, tools=[add])) == "It is 3."
    replayed = model.requests[1].messages[1]
    assert (replayed["content"], len(replayed["tool_calls"])) == ("It may be 4.", 1)


async def test_an_empty_answer_is_an_end() -> None:  # cases 5 and 60
    model = ScriptedModel(say(""), say("here"))
    agent = Agent(model=model)
    assert await answered(agent) == ""
    assert [step["status"] for step in await events(agent, "loop.step")] == ["ok"]
    assert await answered(agent, "still there?") == "here"
    assert len(model.requests) == 2


async def test_usage_that_the_provider_did_not_tell_is_not_zero() -> None:  # cases 17 and 52
    agent = Agent(model=ScriptedModel(say("ok"), say("ok", usage=(7, 1))))
    silent, telling = await played(agent), await played(agent)
    assert [e.data["usage"] for e in silent if e.kind == "usage"] == [None]
    assert [e.data["usage"]["input_tokens"] for e in telling if e.kind == "usage"] == [7]
    runs = await events(agent, "run")
    assert "usage" not in runs[0]
    assert runs[1]["usage"]["total_tokens"] == 8


async def test_the_run_ends_when_its_steps_are_used_up() -> None:
    agent = Agent(model=ScriptedModel(lambda _: call("add", a=1, b=1)), tools=[add], max_steps=3)
    with pytest.raises(Exception, match="still asked for tools after 3 steps"):
        await played(agent)
    assert [step["status"] for step in await events(agent, "loop.step")] == ["continue"] * 3
    assert await results(agent) == [2, 2, 2]


async def test_options_go_with_each_model_call() -> None:
    model = ScriptedModel(call("add", a=1, b=1), say("2"))
    await played(Agent(model=model, tools=[add]), options={"temperature": 0.5})
    assert [request.options["temperature"] for request in model.requests] == [0.5, 0.5]


async def test_an_unknown_option_is_refused_before_anything_is_written() -> None:
    agent = Agent(model=ScriptedModel(say("never")))
    with pytest.raises(InvalidInput, match="no options temprature"):
        await played(agent, options={"temprature": 0.5})
    assert await entries(agent) == []


@pytest.mark.parametrize("limits", [{"max_steps": 0}, {"max_tool_concurrency": 0}])
def test_limits_are_one_or_more(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="1 or more, not 0"):
        Agent(**limits)


async def test_a_run_may_bring_its_own_model() -> None:
    assert await answered(Agent(model=ScriptedModel(say("a"))), model=ScriptedModel(say("b"))) == "b"


async def test_a_run_without_any_model_is_refused_before_anything_is_written() -> None:
    agent = Agent()
    with pytest.raises(InvalidInput, match="no model to call"):
        await played(agent)
    assert await entries(agent) == []


async def test_a_model_with_a_history_of_its_own_is_refused() -> None:  # case 32
    class History:
        async def read(self) -> list[republic.Message]:
            return []

        async def write(self, messages: object) -> None: ...

    model = ScriptedModel(say("never"))
    model.history = History()
    with pytest.raises(InvalidInput, match="the tape is the history"):
        await played(Agent(model=model))


async def test_what_the_agent_does_not_merge_leaves_no_trace() -> None:  # case 45
    agent = Agent(model=ScriptedModel(say("ok")))
    assert await answered(agent, merge_back=False) == "ok"
    assert [entry.payload["name"] for entry in await entries(agent)] == ["session/start", "handoff"]


async def test_two_runs_at_once_share_nothing() -> None:  # cases 31 and 50
    both_asked = asyncio.Barrier(2)

    async def script(request: ModelRequest) -> Any:
        await both_asked.wait()
        return say(request.prompt.upper())

    def remember(context: PromptContext) -> str:
        context.state["prompts"] = [*context.state.get("prompts", []), *context.prompt]
        return ""

    agent = Agent(model=ScriptedModel(script), system_prompt=remember)
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    one, two = await asyncio.gather(
        answered(agent, "one", tape="a", state=first), answered(agent, "two", tape="b", state=second)
    )
    assert (one, two) == ("ONE", "TWO")
    assert (first, second) == ({"prompts": ["one"]}, {"prompts": ["two"]})
    assert [message.text for message in await agent.tape("a").read_messages()] == ["one", "ONE"]
    assert [message.text for message in await agent.tape("b").read_messages()] == ["two", "TWO"]


async def test_two_runs_on_one_session_follow_each_other() -> None:  # cases 95 and 179
    agent = Agent(model=ScriptedModel(lambda request: say(f"re {request.prompt}")))
    await asyncio.gather(*(played(agent, f"m{number}") for number in range(5)))
    messages = [message.text for message in await agent.tape(TAPE).read_messages()]
    assert sorted(messages[::2]) == ["m0", "m1", "m2", "m3", "m4"]
    assert [f"re {prompt}" for prompt in messages[::2]] == messages[1::2]
    anchors = [entry for entry in await entries(agent, "anchor") if entry.anchor_name == "session/start"]
    assert len(anchors) == 1  # cases 100 and 180


async def test_a_run_on_an_open_tape_leaves_the_fork_to_the_caller() -> None:
    agent = Agent(model=ScriptedModel(say("one"), say("two")))
    async with agent.session(TAPE) as tape:
        for prompt in ("first", "second"):
            async for _event in await agent.run_on(tape, prompt):
                assert await entries(agent, "message") == []
        assert [message.text for message in await tape.read_messages()] == ["first", "one", "second", "two"]
    assert len(await events(agent, "turn.receipt")) == 1


async def test_a_run_on_an_open_tape_works_on_any_store() -> None:
    elsewhere = InMemoryTapeStore()
    other = Agent(store=elsewhere)
    agent = Agent(model=ScriptedModel(say("hi")))
    async with other.session(TAPE) as tape:
        _ = [event async for event in await agent.run_on(tape, "Hello", run_id="turn-7")]
    assert await entries(agent) == []
    assert {entry.meta["run_id"] for entry in await entries(other, "message")} == {"turn-7"}


async def test_run_once_is_one_exchange() -> None:
    agent = Agent(model=ScriptedModel(call("add", a=1, b=2), say("3")), tools=[add])
    tape = agent.tape(TAPE)
    asked = [event async for event in agent.run_once("1 + 2?", tape=tape)]
    assert asked[-1].data["tool_results"] == [3]
    went_on = [event async for event in agent.run_once(None, tape=tape)]
    assert went_on[-1].data == {"ok": True, "text": "3"}
    assert [entry.kind for entry in await entries(agent)] == [
        "message",
        "tool_call",
        "tool_result",
        "event",
        "message",
        "event",
    ]


async def test_images_in_a_prompt_reach_the_tape_and_the_model() -> None:  # case 88
    model = ScriptedModel(say("a dot"))
    agent = Agent(model=model)
    image = republic.image(b"\x89PNG", media_type="image/png")
    async with agent.run(["What is this?", image], tape=TAPE) as stream:
        _ = [event async for event in stream]
    assert model.requests[0].messages[0]["content"][1]["image_url"]["url"].startswith("data:image/png")
    assert (await agent.tape(TAPE).read_messages())[0].parts[1] == image


async def test_half_a_character_in_a_prompt_does_not_end_the_session() -> None:  # case 185
    agent = Agent(model=ScriptedModel(say("ok"), say("ok")))
    assert await answered(agent, "half \ud83d") == "ok"
    assert await answered(agent, "next") == "ok"
    assert (await entries(agent, "message"))[0].payload["content"] == "half \ud83d"


async def test_a_context_that_names_a_missing_anchor_fails_before_any_call() -> None:
    model = ScriptedModel(say("never"))
    agent = Agent(model=model, context=TapeContext(anchor="nowhere"))
    with pytest.raises(NotFound, match="nowhere"):
        await played(agent)
    assert model.requests == []
    assert [entry.payload["kind"] for entry in await entries(agent, "error")] == ["not_found"]


async def test_ids_that_a_model_uses_twice_are_renamed_on_the_wire_only() -> None:  # case 110
    script = iter([call("add", a=1, b=1, _id="x"), call("add", a=2, b=2, _id="x"), say("ok")])
    model = ScriptedModel(lambda _: next(script))
    agent = Agent(model=model, tools=[add])
    await played(agent)
    asked, first, again, second = model.requests[2].messages[1:]
    assert [asked["tool_calls"][0]["id"], first["tool_call_id"], first["content"]] == ["x", "x", "2"]
    assert [again["tool_calls"][0]["id"], second["tool_call_id"], second["content"]] == ["x_2", "x_2", "4"]
    assert [entry.payload["call_ids"] for entry in await entries(agent, "tool_result")] == [["x"], ["x"]]


async def test_any_context_can_be_sent() -> None:
    model = ScriptedModel(call("add", a=1, b=1, _id="x"), say("ok"))
    assert await answered(Agent(model=model, tools=[add], context=openai_messages())) == "ok"
    assert [message["role"] for message in model.requests[1].messages] == ["user", "assistant", "tool"]


async def test_a_selector_that_leaves_half_a_pair_does_no_harm() -> None:  # cases 154 and 159
    async def last_two(entries: Any, context: TapeContext) -> list[Any]:
        return list(await default_tape_context().messages(entries))[-2:]

    model = ScriptedModel(call("add", a=1, b=1), call("add", a=1, b=1), say("ok"))
    agent = Agent(model=model, tools=[add], context=TapeContext(select=last_two))
    assert await answered(agent) == "ok"


async def test_steps_are_told_as_they_begin() -> None:
    streamed = await played(Agent(model=ScriptedModel(call("add", a=1, b=1), say("ok")), tools=[add]))
    assert [event.data for event in streamed if event.kind == "step"] == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("kind", ["memory", "files"])
async def test_a_run_is_the_same_on_every_store(kind: str, tmp_path: Path) -> None:
    too_long = fail(400, "prompt is too long")
    model = ScriptedModel(call("add", a=1, b=2, _id="c1"), say("3", usage=(5, 1)), too_long, say("4", usage=(5, 1)))
    store = InMemoryTapeStore() if kind == "memory" else FileTapeStore(tmp_path)
    agent = Agent(model=model, tools=[add], store=store)
    assert await answered(agent, "1 + 2?") == "3"
    assert await answered(agent, "2 + 2?") == "4"
    assert [entry.payload.get("name", entry.kind) for entry in await entries(agent)] == [
        *("session/start", "handoff", "loop.start"),
        *("loop.step.start", "message", "tool_call", "tool_result", "run", "loop.step"),
        *("loop.step.start", "message", "run", "loop.step", "loop.finish", "turn.receipt"),
        *("loop.start", "loop.step.start", "message", "error", "run"),
        *("auto_handoff/context_overflow", "handoff", "message", "loop.step"),
        *("loop.step.start", "message", "run", "loop.step", "loop.finish", "turn.receipt"),
    ]
