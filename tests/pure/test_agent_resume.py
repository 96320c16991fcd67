"""Going on with a run whose attempt died anywhere: the tape becomes that of a run that nobody disturbed."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from bub_redis.agent import Agent, Budget, EventBus, Resume, ToolContext, events, tool
from bub_redis.agent.builtin_tools import tape_handoff
from bub_redis.agent.stream import StreamEvent
from bub_redis.errors import InvalidInput, ModelError
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.fork import Fork
from bub_redis.testing import ModelRequest, ScriptedModel, call, calls, fail, say
from tests.pure.runs import TAPE

RUN = "turn-1"
TOO_LONG = fail(400, {"error": {"message": "prompt is too long: 9000 tokens > 8000 maximum"}})


class Killed(BaseException):
    """The attempt dies here: nothing after it happens."""


@dataclass
class Journal:
    """What outlives an attempt: its overlay, and what handlers of the run wrote down."""

    entries: list[TapeEntry] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    usage: Any = None
    model: str | None = None

    def handlers(self) -> EventBus:
        bus = EventBus()
        bus.on(events.LLMCallFinished, self._answered)
        bus.on(events.ToolCallStarted, lambda event: self.started.add(event.call.context.idempotency_key))
        bus.on(events.ToolCallFinished, self._finished)
        return bus

    def _answered(self, event: events.LLMCallFinished) -> None:
        self.usage, self.model = event.result.usage, event.request.model

    def _finished(self, event: events.ToolCallFinished) -> None:
        self.results[event.call.context.idempotency_key] = event.result

    @property
    def resume(self) -> Resume:
        return Resume(
            results=self.results,
            started=self.started - self.results.keys(),
            usage=self.usage,
            model=self.model,
        )


@asynccontextmanager
async def forked(agent: Agent, journal: Journal) -> AsyncIterator[Tape]:
    """A fork that holds what the journal knows, and dies with the block; what it holds then is journaled."""
    async with agent.session(TAPE, merge_back=False) as tape:
        if journal.entries:
            await tape.append(*journal.entries)
        try:
            yield tape
        finally:
            assert isinstance(tape.store, Fork)
            journal.entries = tape.store.entries


async def attempt(
    agent: Agent, journal: Journal, *, first: bool, die: Callable[[Any], None] | None = None
) -> list[StreamEvent]:
    """Run until it ends or dies; what it streamed, if it ended."""
    streamed: list[StreamEvent] = []
    async with forked(agent, journal) as tape:
        bus = journal.handlers()
        if die is not None:
            bus.on(events.AgentEvent, die)
        resume = None if first else journal.resume
        with suppress(Killed):
            running = await agent.run_on(tape, "1 + 2?", run_id=RUN, events=bus, resume=resume)
            streamed = [event async for event in running]
    return streamed


def told(entries: list[TapeEntry]) -> list[Any]:
    """Entries without what differs between any two runs: dates and durations."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: kept(item) for key, item in value.items() if key not in {"elapsed_ms", "date"}}
        return value

    return [(entry.kind, kept(entry.payload), entry.meta) for entry in entries]


class Died:
    """Kills an attempt at its n-th event and remembers what its overlay held at that moment."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.entries: list[TapeEntry] | None = None

    def __call__(self, event: events.AgentEvent) -> None:
        if self.entries is not None:
            raise Killed
        self._left -= 1
        if self._left == 0:
            assert isinstance(event.tape.store, Fork)
            self.entries = event.tape.store.entries
            raise Killed


@tool(idempotent=True)
def add(a: int, b: int) -> int:
    return a + b


def answers(request: ModelRequest) -> Any:
    """Two calls, one more call, then the answer; the same for whoever asks."""
    ids = [made["id"] for message in request.messages for made in message.get("tool_calls") or ()]
    if "c1" not in ids:
        return calls(call("add", a=1, b=2, _id="c1"), call("add", a=2, b=2, _id="c2"), usage=(10, 2))
    if "c3" not in ids:
        return calls(call("add", a=0, b=3, _id="c3"), text="Once more.", usage=(20, 2))
    return say("It is 3.", usage=(30, 2))


def overflowing(request: ModelRequest) -> Any:
    """As `answers`, but the third view is too large, and then there is a new context."""
    asked = [message for message in request.messages if message.get("tool_calls")]
    return TOO_LONG if len(asked) == 2 and "earlier" in str(request.messages) else answers(request)


def handing_off(request: ModelRequest) -> Any:
    """The model asks for a new context, and goes on in it."""
    if request.messages[1]["content"] == "All of it.":
        return say("It is 3.", usage=(30, 2))
    return call("tape_handoff", summary="All of it.", _id="c1")


def growing(request: ModelRequest) -> Any:
    """As `answers`, but the second response fills the budget."""
    return replace(answers(request), usage=(900 if "c1" in str(request.messages) else 10, 2))


SCRIPTS: dict[str, Callable[[ModelRequest], Any]] = {
    "tools": answers,
    "overflow": overflowing,
    "handoff": handing_off,
    "budget": growing,
}
BUDGET = Budget(1_000, reserve_tokens=150)


async def undisturbed(script: Any) -> list[TapeEntry]:
    agent, journal = prepared(script)
    await (await seeded(agent)).append(TapeEntry.message({"role": "user", "content": "earlier"}))
    await attempt(agent, journal, first=True)
    return journal.entries


async def seeded(agent: Agent) -> Tape:
    tape = agent.tape(TAPE)
    await tape.ensure_bootstrap_anchor()
    return tape


def prepared(script: Any) -> tuple[Agent, Journal]:
    agent = Agent(
        model=ScriptedModel(script),
        tools=[add, tape_handoff],
        system_prompt="Add.",
        budget=BUDGET if script is growing else None,
    )
    return agent, Journal()


def heard(streamed: list[StreamEvent]) -> list[Any]:
    """What a follower shows: steps, each text in one piece, calls and their results."""
    shown: list[Any] = []
    for event in streamed:
        if event.kind == "text" and shown and shown[-1][0] == "text":
            shown[-1] = ("text", shown[-1][1] + event.data["delta"])
        elif event.kind == "text":
            shown.append(("text", event.data["delta"]))
        elif event.kind in {"step", "tool_call", "tool_result"}:
            shown.append((event.kind, event.data))
    return shown


async def test_what_was_kept_is_streamed_again_wherever_the_run_was_cut() -> None:
    """Whoever forgets what the dead attempt showed misses nothing of the answer."""
    agent, journal = prepared(answers)
    await seeded(agent)
    whole = heard(await attempt(agent, journal, first=True))
    assert [kind for kind, _ in whole].count("tool_call") == 2 and ("text", "Once more.") in whole
    cut = 0
    while True:
        cut += 1
        died = Died(cut)
        agent, journal = prepared(answers)
        await seeded(agent)
        await attempt(agent, journal, first=True, die=died)
        if died.entries is None:
            break
        journal.entries = died.entries
        assert heard(await attempt(agent, journal, first=False)) == whole, cut
    assert cut > 20


@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_run_cut_at_any_event_ends_as_if_nothing_had_happened(script: str) -> None:
    """Cases 128, 130, 167, 169 and 173: nothing twice, nothing lost, wherever the attempt died."""
    played = SCRIPTS[script]
    expected = told(await undisturbed(played))
    assert sum(kind == "anchor" for kind, *_ in expected) == (script != "tools")
    count = 0
    while True:
        count += 1
        agent, journal = prepared(played)
        await (await seeded(agent)).append(TapeEntry.message({"role": "user", "content": "earlier"}))
        died = Died(count)
        await attempt(agent, journal, first=True, die=died)
        if died.entries is None:
            break
        journal.entries = died.entries
        await attempt(agent, journal, first=False)
        assert told(journal.entries) == expected, f"cut at event {count}"
    assert count > 15


@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_run_cut_after_any_append_ends_as_if_nothing_had_happened(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases 128, 130, 167, 169 and 173: also between two events."""
    played = SCRIPTS[script]
    expected = told(await undisturbed(played))
    append = Fork.append
    held: list[list[TapeEntry]] = []
    usages: list[Any] = []
    agent, whole = prepared(played)

    async def kept(self: Fork, tape: str, *added: TapeEntry) -> list[TapeEntry]:
        appended = await append(self, tape, *added)
        held.append(self.entries)
        usages.append(whole.usage)
        return appended

    with monkeypatch.context() as patched:
        patched.setattr(Fork, "append", kept)
        await (await seeded(agent)).append(TapeEntry.message({"role": "user", "content": "earlier"}))
        await attempt(agent, whole, first=True)
    # The usage of a response is noted when it is recorded, right after its append.
    for entries, usage in zip(held, [*usages[1:], whole.usage], strict=True):
        agent, journal = prepared(played)
        await (await seeded(agent)).append(TapeEntry.message({"role": "user", "content": "earlier"}))
        journal.entries = entries
        # The responses and results that it had by then, and some that it did not have yet: those are not looked at.
        journal.results, journal.started, journal.model = whole.results, whole.started, whole.model
        journal.usage = usage
        await attempt(agent, journal, first=False)
        assert told(journal.entries) == expected, told(entries)[-1]


async def test_a_run_may_die_again_and_again() -> None:
    """Case 173."""
    expected = told(await undisturbed(answers))
    agent, journal = prepared(answers)
    await (await seeded(agent)).append(TapeEntry.message({"role": "user", "content": "earlier"}))
    deaths = 0
    first = True
    while True:
        died = Died(deaths + 1)
        await attempt(agent, journal, first=first, die=died)
        first = False
        if died.entries is None:
            break
        journal.entries = died.entries
        deaths += 1
    assert deaths > 5
    assert told(journal.entries) == expected


async def test_what_has_been_answered_is_not_asked_again() -> None:
    model = ScriptedModel(answers)
    ran: list[str] = []

    @tool(name="add")
    def counted(a: int, b: int, context: ToolContext) -> int:
        ran.append(context.idempotency_key)
        return a + b

    agent, journal = Agent(model=model, tools=[counted]), Journal()
    finished = 0

    def die(event: Any) -> None:
        nonlocal finished
        finished += isinstance(event, events.ToolCallFinished)
        if finished == 2:
            raise Killed

    async with forked(agent, journal) as tape:
        bus = journal.handlers()
        bus.on(events.AgentEvent, die)
        with pytest.raises(Killed):
            async for _event in await agent.run_on(tape, "1 + 2?", run_id=RUN, events=bus):
                pass
        assert isinstance(tape.store, Fork)
        held = [entry for entry in tape.store.entries if entry.kind != "tool_result" and not ending(entry)]
    journal.entries = held
    await attempt(agent, journal, first=False)
    assert len(model.requests) == 3
    assert ran == [f"{TAPE}/{RUN}/1/0", f"{TAPE}/{RUN}/1/1", f"{TAPE}/{RUN}/2/0"]


def ending(entry: TapeEntry) -> bool:
    return entry.payload.get("name") in {"run", "loop.step", "loop.finish"}


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_call_whose_outcome_is_unknown_runs_again_only_if_it_may(idempotent: bool) -> None:
    """Case 177."""
    keys: list[str] = []

    @tool(name="pay", idempotent=idempotent)
    def pay(context: ToolContext) -> str:
        keys.append(context.idempotency_key)
        return "paid"

    agent = Agent(model=ScriptedModel(call("pay", _id="c1"), say("done")), tools=[pay])
    journal = Journal()
    died: list[list[TapeEntry]] = []

    def die(event: Any) -> None:
        if isinstance(event, events.ToolCallFinished):
            assert isinstance(event.tape.store, Fork)
            died.append(event.tape.store.entries)
            raise Killed

    bus = EventBus()
    bus.on(events.ToolCallStarted, lambda event: journal.started.add(event.call.context.idempotency_key))
    bus.on(events.AgentEvent, die)
    async with forked(agent, journal) as tape:
        with pytest.raises(Killed):
            async for _event in await agent.run_on(tape, "pay", run_id=RUN, events=bus):
                pass
    journal.entries = died[0]
    await attempt(agent, journal, first=False)
    (result,) = [entry.payload["results"] for entry in journal.entries if entry.kind == "tool_result"]
    if idempotent:
        assert result == ["paid"]
        assert keys == [f"{TAPE}/{RUN}/1/0"] * 2
    else:
        assert result == ["interrupted: this call was cut off before its result was known"]
        assert len(keys) == 1


async def test_the_state_comes_back() -> None:
    agent, journal = Agent(model=ScriptedModel(say("ok"))), Journal()
    async with forked(agent, journal) as tape:
        resume = replace(journal.resume, state={"looked": 3})
        async for _event in await agent.run_on(tape, "Hello", run_id=RUN, resume=resume):
            pass
        assert tape.context.state == {"looked": 3}


async def test_what_the_run_took_out_of_its_state_stays_out() -> None:
    agent, journal = Agent(model=ScriptedModel(say("ok"))), Journal()
    async with forked(agent, journal) as tape:
        tape.context.state["coupon"] = "given at first"
        resume = replace(journal.resume, state={"looked": 3})
        async for _event in await agent.run_on(tape, "Hello", run_id=RUN, resume=resume):
            pass
        assert tape.context.state == {"looked": 3}


async def test_a_run_that_failed_before_its_attempt_died_fails_the_same_way() -> None:
    agent, journal = Agent(model=ScriptedModel(fail(400, {"error": {"message": "no such luck"}}))), Journal()
    with pytest.raises(ModelError):
        await attempt(agent, journal, first=True)
    for cut_off in (1, 2):
        shorter = Journal(entries=journal.entries[:-cut_off])
        with pytest.raises(ModelError, match="no such luck"):
            await attempt(agent, shorter, first=False)
        assert told(shorter.entries) == told(journal.entries)


async def test_a_run_that_had_ended_only_tells_its_answer() -> None:
    model = ScriptedModel(say("It is 3."))
    agent, journal = Agent(model=model), Journal()
    await attempt(agent, journal, first=True)
    before = told(journal.entries)
    async with forked(agent, journal) as tape:
        streamed = [event async for event in await agent.run_on(tape, "1 + 2?", run_id=RUN, resume=journal.resume)]
    assert streamed[-1].data == {"ok": True, "text": "It is 3."}
    assert told(journal.entries) == before


async def test_a_run_goes_on_only_on_a_fork() -> None:
    agent = Agent(model=ScriptedModel(say("never")))
    with pytest.raises(InvalidInput, match="only on a fork"):
        await agent.run_on(agent.tape(TAPE), "Hello", resume=Resume())
