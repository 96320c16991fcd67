"""Tools: typed functions that a model calls, and one result for each call, whatever happens."""

import asyncio
import functools
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from bub_redis.agent import Agent, Tool, ToolContext, tool
from bub_redis.agent.events import ToolCallFinished
from bub_redis.errors import InvalidInput, NotFound
from bub_redis.testing import ScriptedModel, call, calls, say
from tests.pure.runs import TAPE, answered, entries, played, results


async def result_of(function: Any, _raw: str | None = None, **arguments: Any) -> Any:
    """What the model reads after it called `function` once."""
    the_tool = function if isinstance(function, Tool) else tool(function)
    agent = Agent(model=ScriptedModel(call(the_tool.wire_name, _raw=_raw, **arguments), say("ok")), tools=[the_tool])
    assert await answered(agent) == "ok"
    (result,) = await results(agent)
    return result


# What the model is shown


def test_a_function_is_described_by_its_name_its_docstring_and_its_types() -> None:
    @tool
    def weather(city: Annotated[str, Field(description="where")], days: int = 3) -> str:
        """Forecast the weather."""
        return f"{city}: {days}"

    assert (weather.name, weather.description) == ("weather", "Forecast the weather.")
    assert weather.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "title": "City", "description": "where"},
            "days": {"type": "integer", "title": "Days", "default": 3},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_the_context_is_not_shown_to_the_model() -> None:
    @tool
    def remember(text: str, context: ToolContext, again: ToolContext | None = None) -> str:
        return text

    assert list(remember.parameters["properties"]) == ["text"]


def test_name_and_description_may_be_given() -> None:
    named = tool(name="orders.find", description="Find orders.", idempotent=True, timeout_s=5.0)(lambda: None)
    assert (named.name, named.wire_name, named.description) == ("orders.find", "orders_find", "Find orders.")
    assert (named.idempotent, named.timeout_s) == (True, 5.0)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda *items: None, r"\*items has no name"),
        (lambda **options: None, r"\*\*options has no name"),
        (lambda text, /: None, "text has no name"),
        (functools.partial(len), "name is 1 to 64"),
    ],
)
def test_a_function_that_no_model_can_call_is_refused(function: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        tool(name=None if isinstance(function, functools.partial) else "f")(function)


def test_a_generator_is_refused() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for function in (numbers, later):
        with pytest.raises(InvalidInput, match="return a list"):
            tool(function)


def test_types_without_a_schema_are_refused() -> None:
    class Opaque: ...

    def opaque(thing: Opaque) -> None: ...

    def callback(then: Callable[[], None]) -> None: ...

    def unknown(thing: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function in (opaque, callback):
        with pytest.raises(InvalidInput, match=f"tool '{function.__name__}'"):
            tool(function)
    with pytest.raises(InvalidInput, match="Missing"):
        tool(unknown)


def test_two_tools_that_look_the_same_to_a_model_are_refused() -> None:
    dotted, plain = tool(name="a.b")(lambda: None), tool(name="a_b")(lambda: None)
    with pytest.raises(InvalidInput, match=r"'a\.b' and 'a_b'"):
        Agent(tools=[dotted, plain])


async def test_dotted_names_reach_the_model_with_underscores_and_map_back() -> None:
    @tool(name="orders.find")
    def find(number: int) -> str:
        return f"order {number}"

    model = ScriptedModel(calls(call("orders_find", number=1), call("orders.find", number=2)), say("ok"))
    agent = Agent(model=model, tools=[find])
    await played(agent)
    assert [offered["function"]["name"] for offered in model.requests[0].tools] == ["orders_find"]
    assert await results(agent) == ["order 1", "order 2"]


async def test_a_pydantic_model_may_hold_the_arguments() -> None:
    class Order(BaseModel):
        number: int = Field(description="which")
        day: date

    @tool(model=Order)
    def book(order: Order, context: ToolContext) -> str:
        """Book an order."""
        return f"{order.number} on {order.day:%d.%m.} for {context.run_id and 'us'}"

    assert set(book.parameters["properties"]) == {"number", "day"}
    assert await result_of(book, number=7, day="2026-01-02") == "7 on 02.01. for us"
    refused = await result_of(book, number="x", day="2026-01-02")
    assert [detail["argument"] for detail in refused["details"]] == ["number"]


def test_a_pydantic_model_fills_one_parameter() -> None:
    class Order(BaseModel):
        number: int

    with pytest.raises(InvalidInput, match="takes its Order in one parameter, not in 2"):
        tool(name="f", model=Order)(lambda a, b: None)


STOCK = {
    "type": "object",
    "properties": {"item": {"type": "string"}, "most": {"type": "integer"}, "any": {}},
    "required": ["item"],
    "additionalProperties": False,
}


async def test_a_json_schema_makes_a_tool() -> None:
    async def look_up(context: ToolContext, **arguments: Any) -> Any:
        return arguments

    stock = Tool(name="stock.look_up", description="Look up stock.", parameters=STOCK, handler=look_up)
    assert stock.schema.parameters is STOCK
    assert await result_of(stock, item="pen", most=3) == {"item": "pen", "most": 3}


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({}, ["item"]),
        ({"item": 5}, ["item"]),
        ({"item": "pen", "most": True}, ["most"]),
        ({"item": "pen", "colour": "red"}, ["colour"]),
    ],
)
async def test_arguments_that_do_not_fit_a_json_schema_are_told_one_by_one(
    arguments: dict[str, Any], wrong: list[str]
) -> None:  # case 56
    result = await result_of(Tool("stock", lambda **_: "never", "", STOCK), **arguments)
    assert result["kind"] == "invalid_input"
    assert [detail["argument"] for detail in result["details"]] == wrong


# How arguments arrive


async def test_arguments_arrive_as_the_types_that_were_declared() -> None:
    class Address(BaseModel):
        city: str

    seen: list[Any] = []

    def book(day: date, address: Address, kind: Literal["a", "b"], tags: set[str], price: Decimal = Decimal(1)) -> None:
        seen.extend([day, address, kind, tags, price])

    await result_of(book, day="2026-01-02", address={"city": "Ulm"}, kind="b", tags=["x", "x"])
    assert seen == [date(2026, 1, 2), Address(city="Ulm"), "b", {"x"}, Decimal(1)]


async def test_parameters_may_have_any_name() -> None:
    def odd(model_config: int, self: int, schema: int, arguments: int) -> int:
        return model_config + self + schema + arguments

    assert await result_of(odd, model_config=1, self=2, schema=3, arguments=4) == 10


async def test_a_call_without_arguments_may_send_nothing_at_all() -> None:
    assert await result_of(tool(name="now")(lambda: "12:00"), _raw="") == "12:00"


# One result per call


async def test_an_unknown_tool_is_a_result_that_the_model_reads() -> None:  # cases 20 and 53
    model = ScriptedModel(calls(call("nope"), call("ping")), say("sorry"))
    agent = Agent(model=model, tools=[tool(name="ping")(lambda: "pong")])
    assert await answered(agent) == "sorry"
    unknown, known = model.requests[1].tool_results
    assert "there is no tool 'nope'; the tools are: ping" in unknown
    assert known == "pong"


@pytest.mark.parametrize("raw", ['{"a": ', "[1, 2]", "null", '"text"', "[" * 100_000])
async def test_arguments_that_are_no_object_are_a_result(raw: str) -> None:  # case 56
    result = await result_of(tool(name="f")(lambda a: a), _raw=raw)
    assert result["kind"] == "invalid_input"
    assert "not a JSON object" in result["message"]


async def test_arguments_that_do_not_fit_are_told_one_by_one() -> None:  # case 56
    def add(a: int, b: int) -> int:
        raise AssertionError("never called")

    result = await result_of(add, a="one", c=3)
    assert (result["kind"], result["message"]) == ("invalid_input", "the arguments do not fit the tool's parameters")
    assert {detail["argument"] for detail in result["details"]} == {"a", "b", "c"}


async def test_half_a_character_in_arguments_is_a_result() -> None:  # case 65
    result = await result_of(tool(name="f")(lambda text: text), _raw=r'{"text": "\ud83d"}')
    assert result["kind"] == "invalid_input"


async def test_what_a_tool_raises_is_a_result() -> None:  # case 56
    def broken() -> None:
        raise RuntimeError("no stock left")

    assert await result_of(broken) == {"kind": "tool", "message": "RuntimeError: no stock left"}


async def test_an_error_of_this_project_keeps_its_kind() -> None:
    def find() -> None:
        raise NotFound("no order 7")

    assert await result_of(find) == {"kind": "not_found", "message": "no order 7"}


async def test_validation_inside_a_tool_is_not_taken_for_bad_arguments() -> None:
    class Order(BaseModel):
        number: int

    def load() -> None:
        Order.model_validate({"number": "x"})

    result = await result_of(load)
    assert result["kind"] == "tool"
    assert "validation error for Order" in result["message"]


async def test_a_tool_that_exits_does_not_end_the_process() -> None:
    def leave() -> None:
        sys.exit(2)

    async def leave_too() -> None:
        sys.exit(3)

    assert await result_of(leave) == {"kind": "tool", "message": "SystemExit: 2"}
    assert await result_of(leave_too) == {"kind": "tool", "message": "SystemExit: 3"}


async def test_a_stop_iteration_of_a_sync_tool_does_not_wait_for_ever() -> None:
    def first() -> None:
        next(iter(()))

    assert await result_of(first) == {"kind": "tool", "message": "RuntimeError: StopIteration"}


async def test_a_tool_that_cancels_itself_has_a_result() -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    assert await result_of(give_up) == {"kind": "tool", "message": "the tool was cancelled"}


async def test_a_tool_has_its_deadline() -> None:
    @tool(timeout_s=0.01)
    async def slow() -> None:
        await asyncio.Event().wait()

    assert await result_of(slow) == {"kind": "tool", "message": "TimeoutError: no result within 0.01 s"}


async def test_a_timeout_of_the_tools_own_keeps_its_words() -> None:
    @tool(timeout_s=60)
    def ask() -> None:
        raise TimeoutError("the warehouse is silent")

    assert await result_of(ask) == {"kind": "tool", "message": "TimeoutError: the warehouse is silent"}


# What results are


@dataclass
class Point:
    x: int


class Item(BaseModel):
    day: date


class Bare:
    def __str__(self) -> str:
        return "bare"


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("mute")


def circle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (None, None),
        ({"a": [1, True, 0.5]}, {"a": [1, True, 0.5]}),
        (Point(1), {"x": 1}),
        ([Item(day=date(2026, 1, 2))], [{"day": "2026-01-02"}]),
        ({1: (2, 3)}, {"1": [2, 3]}),
        (Path("/tmp"), "/tmp"),  # noqa: S108
        (b"\xff", "_w=="),
        (Bare(), "bare"),
        (2**70, 2**70),
        ("half \ud83d", "half \ud83d"),
    ],
)
async def test_results_are_json_where_they_can_be(value: Any, read: Any) -> None:  # case 57
    assert await result_of(tool(name="f")(lambda: value)) == read


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], circle(), Mute()])
async def test_a_result_that_has_no_json_is_an_error_that_the_model_reads(value: Any) -> None:  # case 57
    result = await result_of(tool(name="f")(lambda: value))
    assert result["kind"] == "tool"
    assert f"the result, {type(value).__name__}, is not JSON" in result["message"]


@pytest.mark.parametrize("value", ["x" * 2_000, ["x" * 2_000], {"a": "ä" * 1_000}])
async def test_a_result_that_is_too_large_is_an_error_with_a_preview(value: Any) -> None:  # cases 18 and 124
    agent = Agent(
        model=ScriptedModel(call("f"), say("ok")), tools=[tool(name="f")(lambda: value)], max_result_bytes=1_000
    )
    await played(agent)
    (result,) = await results(agent)
    assert "more than the 1000 that one may have; ask for less" in result["message"]
    assert 0 < len(result["details"]["preview"]) < 700


async def test_a_handler_may_keep_a_large_result_elsewhere() -> None:  # case 18
    agent = Agent(
        model=ScriptedModel(call("f"), say("ok")), tools=[tool(name="f")(lambda: "x" * 2_000)], max_result_bytes=1_000
    )

    def keep(event: ToolCallFinished) -> None:
        event.result = f"kept, {len(event.result)} characters"

    agent.events.on(ToolCallFinished, keep)
    await played(agent)
    assert await results(agent) == ["kept, 2000 characters"]


async def test_an_error_of_any_length_is_cut() -> None:  # case 123
    def broken() -> None:
        raise RuntimeError("no " * 100_000)

    result = await result_of(broken)
    assert len(result["message"]) < 4_100
    assert result["message"].startswith("RuntimeError: no no")


# How they run


async def test_results_stand_in_the_order_of_the_calls() -> None:  # case 61
    second_done = asyncio.Event()

    async def slow() -> str:
        await second_done.wait()
        return "slow"

    async def quick() -> str:
        second_done.set()
        return "quick"

    agent = Agent(
        model=ScriptedModel(calls(call("slow", _id="1"), call("quick", _id="2")), say("ok")), tools=[slow, quick]
    )
    streamed = await played(agent)
    told = next(event for event in streamed if event.kind == "tool_result")
    assert told.data == {"tool_results": ["slow", "quick"], "call_ids": ["1", "2"]}


@pytest.mark.parametrize(("limit", "at_once"), [(None, 4), (2, 2), (1, 1)])
async def test_at_most_so_many_calls_run_at_once(limit: int | None, at_once: int) -> None:
    running: list[int] = []
    most = 0
    order = []

    async def work(number: int) -> int:
        nonlocal most
        order.append(number)
        running.append(number)
        most = max(most, len(running))
        for _ in range(3):
            await asyncio.to_thread(lambda: None)
        running.remove(number)
        return number

    asked = calls(*(call("work", number=number) for number in range(4)))
    agent = Agent(model=ScriptedModel(asked, say("ok")), tools=[work], max_tool_concurrency=limit)
    await played(agent)
    assert (most, order) == (at_once, [0, 1, 2, 3])
    assert await results(agent) == [0, 1, 2, 3]


async def test_a_sync_tool_runs_in_a_thread() -> None:
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert await result_of(where) is False


async def test_a_sync_tool_takes_no_thread_from_others() -> None:
    """However many there are, in as many sessions: each answers only once all of them are under way."""
    many = 60
    under_way = threading.Barrier(many, timeout=10)

    def meet() -> bool:
        under_way.wait()
        return True

    agent = Agent(model=ScriptedModel(calls(*(call("meet") for _ in range(many))), say("ok")), tools=[meet])
    await played(agent)
    assert await results(agent) == [True] * many


def test_nobody_waits_for_a_sync_tool_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the run, after the deadline, nor the loop when it closes; and its late end disturbs nobody."""
    let_go = threading.Event()
    hanging: list[threading.Thread] = []

    @tool(timeout_s=0.01)
    def hang() -> None:
        hanging.append(threading.current_thread())
        let_go.wait(5)

    result = asyncio.run(result_of(hang))
    assert result["message"] == "TimeoutError: no result within 0.01 s"
    (thread,) = hanging
    assert thread.is_alive()
    let_go.set()
    thread.join(5)
    assert not thread.is_alive()
    assert caplog.records == []


async def test_what_a_sync_tool_raises_is_not_kept(collector_off: None) -> None:
    """Its traceback leads to all that the run holds."""
    raised: list[weakref.ref[Exception]] = []

    class Unkept(Exception):
        def __init__(self) -> None:
            raised.append(weakref.ref(self))

    @tool
    def fails() -> str:
        """Fail."""
        raise Unkept

    await result_of(fails)
    assert [kept() for kept in raised] == [None]


async def test_a_sync_function_may_return_an_awaitable() -> None:
    async def later() -> str:
        return "later"

    assert await result_of(tool(name="f")(lambda: later())) == "later"


async def test_a_tool_knows_its_call() -> None:
    seen: list[ToolContext] = []

    async def look(context: ToolContext) -> None:
        seen.append(context)
        context.state["looks"] = context.state.get("looks", 0) + 1
        await context.tape.append_event("looked")

    state: dict[str, Any] = {}
    # The model uses an id twice, as models do (case 110): keys stay apart.
    asked = calls(call("look", _id="x"), call("look", _id="y"))
    agent = Agent(model=ScriptedModel(asked, call("look", _id="x"), say("ok")), tools=[look])
    await played(agent, tape="a/b", state=state)
    assert [context.call_id for context in seen] == ["x", "y", "x"]
    run_id = seen[0].run_id
    assert [context.idempotency_key for context in seen] == [
        f"a%2Fb/{run_id}/1/0",
        f"a%2Fb/{run_id}/1/1",
        f"a%2Fb/{run_id}/2/0",
    ]
    assert state == {"looks": 3}
    looked = [entry for entry in await agent.tape("a/b").query().all() if entry.payload.get("name") == "looked"]
    assert len(looked) == 3


async def test_idempotency_keys_are_the_same_when_a_turn_runs_again() -> None:
    keys = []

    def look(context: ToolContext) -> None:
        keys.append(context.idempotency_key)

    agent = Agent(model=ScriptedModel(call("look"), say("ok"), call("look"), say("ok")), tools=[look])
    for _attempt in range(2):
        async with agent.session(TAPE, merge_back=False) as tape:
            _ = [event async for event in await agent.run_on(tape, "Hello", run_id="turn-1")]
    assert keys == [f"{TAPE}/turn-1/1/0"] * 2


async def test_calls_with_one_id_are_told_apart() -> None:  # case 110
    model = ScriptedModel(calls(*(call("echo", _id="x", n=number) for number in range(3))), say("ok"))
    agent = Agent(model=model, tools=[tool(name="echo")(lambda n: n)])
    await played(agent)
    asked, *answers = model.requests[1].messages[1:]
    assert [made["id"] for made in asked["tool_calls"]] == ["x", "x_1", "x_2"]
    assert [(answer["tool_call_id"], answer["content"]) for answer in answers] == [
        ("x", "0"),
        ("x_1", "1"),
        ("x_2", "2"),
    ]


async def test_calls_that_had_run_when_the_run_was_cancelled_keep_their_results() -> None:  # case 102
    async def quick() -> str:
        return "done"

    async def endless() -> None:
        await asyncio.Event().wait()

    one_finished = asyncio.Event()
    asked = calls(call("endless", _id="1"), call("quick", _id="2"))
    agent = Agent(model=ScriptedModel(asked), tools=[quick, endless])
    agent.events.on(ToolCallFinished, lambda _: one_finished.set())
    running = asyncio.create_task(played(agent))
    await one_finished.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    known, closed = await entries(agent, "tool_result")
    assert known.payload == {"results": ["done"], "call_ids": ["2"]}
    assert closed.payload["call_ids"] == ["1"]
