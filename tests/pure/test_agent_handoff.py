"""The automatic handoff: one new context for the same prompt, when the old one is larger than the model takes."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import republic

from bub_redis.agent import (
    MAX_AUTO_HANDOFF_RETRIES,
    Agent,
    Budget,
    ContextSize,
    MemoryInbox,
    Overflow,
    ToolContext,
    context_size,
)
from bub_redis.errors import ContextOverflow, InvalidInput, ModelError
from bub_redis.tape import InMemoryTapeStore, Tape, TapeContext, TapeEntry, default_tape_context, openai_messages
from bub_redis.testing import ModelRequest, ScriptedModel, call, fail, say
from tests.pure.runs import TAPE, answered, entries, events, played

TOO_LONG = fail(400, {"error": {"message": "prompt is too long: 9000 tokens > 8000 maximum"}})
ANCHOR = "auto_handoff/context_overflow"


def texts(request: ModelRequest) -> list[str]:
    return [message["content"] for message in request.messages if message["role"] != "system"]


def ping() -> str:
    return "pong"


async def test_an_overflow_is_one_handoff_and_one_retry_of_the_same_prompt() -> None:
    """Cases 9 and 130."""
    model = ScriptedModel(say("Hi."), TOO_LONG, say("Fine."))
    agent = Agent(model=model)
    await played(agent, "Hello")
    streamed = await played(agent, "How are you?")
    assert [texts(request) for request in model.requests[1:]] == [["Hello", "Hi.", "How are you?"], ["How are you?"]]
    assert streamed[-1].data == {"ok": True, "text": "Fine."}
    assert [event.data["name"] for event in streamed if event.kind == "handoff"] == [ANCHOR]
    assert MAX_AUTO_HANDOFF_RETRIES == 1


async def test_what_a_handoff_writes() -> None:
    agent = Agent(model=ScriptedModel(say("Hi."), TOO_LONG, say("Fine.")))
    await played(agent, "Hello")
    await played(agent, "How are you?")
    block = await entries(agent)
    place = next(n for n, entry in enumerate(block) if entry.anchor_name == ANCHOR)
    failed, ran, anchor, handoff, again, step, start, answer = block[place - 2 : place + 6]
    assert failed.payload["kind"] == "context_overflow"
    assert ran.payload["data"]["status"] == "error"
    state = anchor.payload["state"]
    assert state == {"reason": "context_length_exceeded", "error": failed.payload["message"]}
    assert "9000 tokens > 8000" in state["error"]
    assert handoff.payload == {"name": "handoff", "data": {"name": ANCHOR, "state": state}}
    run_id = again.meta["run_id"]
    assert again.payload == {"role": "user", "content": "How are you?"}
    assert again.meta["retry_of"] == run_id
    assert (step.payload["data"]["status"], step.payload["data"]["error"]) == ("auto_handoff", state["error"])
    assert start.payload["data"] == {"step": 2, "prompt": "How are you?"}
    assert answer.payload["content"] == "Fine."
    assert [data["status"] for data in await events(agent, "loop.finish")] == ["ok", "ok"]
    assert [data["status"] for data in await events(agent, "loop.step")] == ["ok", "auto_handoff", "ok"]


async def test_the_next_turn_starts_after_the_new_anchor() -> None:
    """Case 9."""
    model = ScriptedModel(say("Hi."), TOO_LONG, say("Fine."), say("Bye."))
    agent = Agent(model=model)
    for prompt in ("Hello", "How are you?", "Good bye"):
        await played(agent, prompt)
    assert texts(model.requests[-1]) == ["How are you?", "Fine.", "Good bye"]


async def test_every_view_holds_the_prompt_once() -> None:
    agent = Agent(model=ScriptedModel(say("Hi."), TOO_LONG, say("Fine.")))
    await played(agent, "yes")
    await played(agent, "yes")
    tape = agent.tape(TAPE)
    for context in (default_tape_context(), openai_messages(), TapeContext()):
        for anchor, prompts in ((None, 2), ("session/start", 2), (ANCHOR, 1)):
            view = TapeContext(anchor=anchor, select=context.select)
            messages = await Tape(TAPE, tape.store, view).read_messages()
            said = [m.text if isinstance(m, republic.Message) else m["content"] for m in messages]
            assert said.count("yes") == prompts


async def test_a_second_overflow_is_raised() -> None:
    """Cases 130 and 132."""
    model = ScriptedModel(say("Hi."), TOO_LONG, TOO_LONG)
    agent = Agent(model=model)
    await played(agent, "Hello")
    with pytest.raises(ContextOverflow, match="9000 tokens > 8000"):
        await played(agent, "How are you?")
    assert len(model.requests) == 3
    assert [data["status"] for data in await events(agent, "loop.step")] == ["ok", "auto_handoff", "error"]
    assert [data["status"] for data in await events(agent, "turn.receipt")] == ["completed", "failed"]


async def test_an_overflow_after_a_handoff_and_more_work_is_raised_too() -> None:
    """Case 132: one a run, however long it goes on."""
    agent = Agent(model=ScriptedModel(say("Hi."), TOO_LONG, call("ping"), TOO_LONG), tools=[ping])
    await played(agent, "Hello")
    with pytest.raises(ContextOverflow):
        await played(agent, "How are you?")


async def test_there_is_no_handoff_when_the_view_is_only_the_prompt() -> None:
    """A new context would be the same one."""
    model = ScriptedModel(TOO_LONG)
    agent = Agent(model=model)
    with pytest.raises(ContextOverflow):
        await played(agent, "A very long question")
    assert len(model.requests) == 1
    assert [entry.anchor_name for entry in await entries(agent, "anchor")] == ["session/start"]


@pytest.mark.parametrize("anchor", [None, "session/start"])
async def test_there_is_no_handoff_where_contexts_do_not_start_at_the_last_anchor(anchor: str | None) -> None:
    context = TapeContext(anchor=anchor, select=default_tape_context().select)
    agent = Agent(model=ScriptedModel(say("Hi."), TOO_LONG), context=context)
    await played(agent, "Hello")
    with pytest.raises(ContextOverflow):
        await played(agent, "How are you?")
    assert len(await entries(agent, "anchor")) == 1


async def test_other_errors_lead_to_no_handoff() -> None:
    """Cases 192 and 201."""
    busy = fail(429, {"error": {"message": "You have exceeded the token rate limit"}})
    agent = Agent(model=ScriptedModel(say("Hi."), busy))
    await played(agent, "Hello")
    with pytest.raises(ModelError) as raised:
        await played(agent, "How are you?")
    assert not isinstance(raised.value, ContextOverflow)
    assert len(await entries(agent, "anchor")) == 1


async def test_what_a_tool_says_is_no_overflow() -> None:
    """Only what a model call raised is judged."""

    def lookup() -> str:
        raise RuntimeError("maximum context length exceeded")

    agent = Agent(model=ScriptedModel(say("Hi."), call("lookup"), say("ok")), tools=[lookup])
    await played(agent, "Hello")
    assert await answered(agent, "How are you?") == "ok"
    assert len(await entries(agent, "anchor")) == 1


async def test_a_handoff_in_the_middle_of_the_work_starts_again_from_the_prompt() -> None:
    model = ScriptedModel(call("ping"), TOO_LONG, say("Fine."))
    assert await answered(Agent(model=model, tools=[ping]), "Go") == "Fine."
    assert texts(model.requests[-1]) == ["Go"]


async def test_a_large_request_refused_without_a_word_is_an_overflow() -> None:
    """Case 206."""
    for size, overflows in ((200_000, True), (1_000, False)):
        model = ScriptedModel(say("x" * size), fail(400, ""), say("Fine."))
        agent = Agent(model=model)
        await played(agent, "Hello")
        if overflows:
            assert await answered(agent, "again") == "Fine."
        else:
            with pytest.raises(ModelError, match="HTTP 400"):
                await played(agent, "again")


async def test_a_413_is_an_overflow() -> None:
    """Case 18."""
    model = ScriptedModel(say("Hi."), fail(413, "<html>Request Entity Too Large</html>"), say("Fine."))
    agent = Agent(model=model)
    await played(agent, "Hello")
    assert await answered(agent, "again") == "Fine."


# Steering messages


async def test_steering_messages_that_were_taken_are_in_the_retry() -> None:
    """Case 129."""
    inbox = MemoryInbox()
    script = iter([say("Hi."), call("ping"), TOO_LONG, say("Fine.")])

    def answer(request: ModelRequest) -> Any:
        reply = next(script)
        if request.prompt == "Go":
            inbox.put("and quickly", id="s1")
        return reply

    model = ScriptedModel(answer)
    agent = Agent(model=model, tools=[ping])
    await played(agent, "Hello")
    assert await answered(agent, "Go", inbox=inbox) == "Fine."
    assert texts(model.requests[-1]) == ["Go", "and quickly"]
    again = [entry.meta.get("steer") for entry in await entries(agent, "message") if "retry_of" in entry.meta]
    assert again == [None, "s1"]
    everything = TapeContext(anchor=None, select=default_tape_context().select)
    messages = await Tape(TAPE, agent.tape(TAPE).store, everything).read_messages()
    assert [message.text for message in messages].count("and quickly") == 1


# Hooks


class Summarising(Agent):
    """An agent that writes a summary before it leaves a context."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.left: list[Overflow] = []

    async def on_overflow(self, tape: Tape, overflow: Overflow) -> str | None:
        self.left.append(overflow)
        return "Summary: they said hello."


async def test_a_hook_may_write_a_summary_which_is_the_first_message_behind_the_anchor() -> None:
    """Cases 10 and 26."""
    model = ScriptedModel(say("Hi."), TOO_LONG, say("Fine."))
    agent = Summarising(model=model)
    await played(agent, "Hello")
    await played(agent, "How are you?")
    assert texts(model.requests[-1]) == ["Summary: they said hello.", "How are you?"]
    (overflow,) = agent.left
    assert overflow.reason == "context_length_exceeded"
    assert isinstance(overflow.error, ContextOverflow)
    assert [e.payload["content"] for e in overflow.entries if e.kind == "message"] == ["Hello", "Hi.", "How are you?"]


async def test_a_summary_names_what_it_sums_up() -> None:
    """Parent entries by number, entries of the same block by how far back they are."""
    agent = Summarising(model=ScriptedModel(say("Hi."), TOO_LONG, say("Fine.")))
    await played(agent, "Hello")
    parent = len(await entries(agent))
    await played(agent, "How are you?")
    tape = await entries(agent)
    summary = next(entry for entry in tape if "summary_of" in entry.meta)
    first, last = summary.meta["summary_of"]
    assert tape[first - 1].payload["name"] == "handoff"
    assert 0 < first <= parent
    assert last < 0
    assert tape[summary.id + last - 1].payload["name"] == "run"
    assert tape[summary.id - 2].payload["name"] == "handoff"
    assert tape[summary.id - 3].anchor_name == ANCHOR


async def test_a_summary_on_a_tape_that_is_no_fork_names_numbers() -> None:
    agent = Summarising(model=ScriptedModel(TOO_LONG, say("Fine.")))
    tape = agent.tape(TAPE)
    await tape.append(TapeEntry.anchor("p"), TapeEntry.message({"role": "user", "content": "earlier"}))
    _ = [event async for event in await agent.run_on(tape, "Go")]
    summary = next(entry for entry in await entries(agent) if "summary_of" in entry.meta)
    assert summary.meta["summary_of"] == [2, summary.id - 3]


async def test_a_budget_hands_off_before_the_model_refuses() -> None:
    """Cases 16 and 131."""
    model = ScriptedModel(say("Hi.", usage=(900, 50)), say("Fine.", usage=(20, 5)), say("Bye."))
    agent = Agent(model=model, budget=Budget(1_000, reserve_tokens=100))
    await played(agent, "Hello")
    streamed = await played(agent, "How are you?")
    assert texts(model.requests[1]) == ["How are you?"]
    assert [event.data for event in streamed if event.kind == "handoff"] == [
        {"name": "auto_handoff/context_budget", "state": {"reason": "context_budget"}}
    ]
    await played(agent, "Good bye")  # what was counted before the anchor counts no more
    assert texts(model.requests[2]) == ["How are you?", "Fine.", "Good bye"]
    assert [data["status"] for data in await events(agent, "loop.step")] == ["ok", "ok", "ok"]


async def test_a_budget_asks_once_a_run() -> None:
    """Cases 16 and 132."""
    model = ScriptedModel(say("Hi."), call("ping"), say("Fine."))
    agent = Agent(model=model, tools=[ping], budget=Budget(2, reserve_tokens=1))
    await played(agent, "Hello")
    assert await answered(agent, "How are you?") == "Fine."
    names = [entry.anchor_name for entry in await entries(agent, "anchor")]
    assert names == ["session/start", "auto_handoff/context_budget"]


@pytest.mark.parametrize("finish_reason", ["length", "other"])
async def test_an_empty_answer_may_be_an_overflow_if_the_budget_says_so(finish_reason: str) -> None:
    """Case 208."""
    seen: list[ContextSize] = []

    class Watching(Agent):
        async def over_budget(self, tape: Tape, size: ContextSize) -> bool:
            seen.append(size)
            return size.finish_reason is not None and size.usage is not None and size.usage["input_tokens"] >= 8_000

    model = ScriptedModel(say("Hi.", usage=(10, 1)), say("", usage=(8_000, 0)), say("Fine.", usage=(10, 1)))
    agent = Watching(model=model)
    await played(agent, "Hello")
    assert await answered(agent, "How are you?") == "Fine."
    assert texts(model.requests[-1]) == ["How are you?"]
    assert any(size.finish_reason == "stop" for size in seen)
    assert [data["status"] for data in await events(agent, "loop.step")] == ["ok", "auto_handoff", "ok"]


async def test_the_size_of_a_context_is_the_last_usage_and_what_came_since() -> None:
    """Cases 16, 19, 41 and 131."""
    tape = Tape("t", InMemoryTapeStore())
    usage = {"input_tokens": 100, "output_tokens": 10, "cached_tokens": None, "flag": True}
    await tape.append(TapeEntry.event("run", {"status": "ok", "usage": {"input_tokens": 7}}), TapeEntry.anchor("p"))
    assert (await context_size(tape)).tokens == 0
    message = TapeEntry.message({"role": "user", "content": "x" * 400})
    await tape.append(message)
    assert 100 <= (await context_size(tape)).tokens <= 120
    await tape.append(TapeEntry.event("run", {"status": "ok", "usage": usage}), message, TapeEntry.event("noise"))
    await tape.append(TapeEntry.event("run", {"status": "ok", "usage": {"input_tokens": None}}))
    size = await context_size(tape)
    assert size.usage == {"input_tokens": 100, "output_tokens": 10}
    assert 210 <= size.tokens <= 230


async def test_measuring_takes_one_read_whatever_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 16."""
    store = InMemoryTapeStore()
    tape = Tape("t", store)
    await tape.append(*(TapeEntry.message({"role": "user", "content": "x"}) for _ in range(2_000)))
    reads: list[Any] = []
    fetch_all = store.fetch_all

    async def counted(query: Any) -> Sequence[TapeEntry]:
        reads.append(query)
        return await fetch_all(query)

    await tape.append(TapeEntry.anchor("p"), TapeEntry.message({"role": "user", "content": "x"}))
    monkeypatch.setattr(store, "fetch_all", counted)
    assert len((await context_size(tape)).tail) == 1
    assert len(reads) == 1


@pytest.mark.parametrize(("most", "reserve"), [(0, 0), (10, 10), (10, -1)])
def test_a_budget_leaves_something(most: int, reserve: int) -> None:
    with pytest.raises(InvalidInput, match="leaves nothing"):
        Budget(most, reserve)


# Handoffs of others


async def test_a_handoff_that_a_tool_makes_does_not_leave_the_prompt_behind() -> None:
    async def tidy(context: ToolContext) -> str:
        await context.tape.handoff(name="tidied")
        return "tidied"

    model = ScriptedModel(call("tidy"), say("Fine."))
    assert await answered(Agent(model=model, tools=[tidy]), "Go") == "Fine."
    assert texts(model.requests[-1]) == ["Go"]


def test_the_hooks_are_methods_of_the_agent() -> None:
    hooks: list[Callable[..., Any]] = [
        Agent.prepare_tools,
        Agent.pending_messages,
        Agent.has_pending_messages,
        Agent.continue_prompt,
        Agent.over_budget,
        Agent.on_overflow,
    ]
    assert all(hook.__doc__ for hook in hooks)
