"""Running the calls of one response, at once or a few at a time: one result for each, whatever happens."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import republic
import structlog
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from bub_redis.agent.events import EventBus, ToolCall, ToolCallFinished, ToolCallStarted
from bub_redis.agent.tools import Tool, Toolbox, ToolContext
from bub_redis.errors import BubError, InvalidInput, NotFound
from bub_redis.tape import Tape
from bub_redis.tape.entry import encode_json
from bub_redis.tape.names import encode_name

_log = structlog.get_logger(__name__)

TOOL_ERROR = "tool"
"""Bub's kind of an error that a tool raised, or that no such tool exists."""


class ToolCalls:
    """The calls of one model response and, as far as they are known, their results."""

    def __init__(
        self,
        calls: Sequence[republic.ToolCall],
        *,
        toolbox: Toolbox,
        events: EventBus,
        tape: Tape,
        run_id: str,
        step: int,
    ) -> None:
        self._calls = calls
        self._toolbox = toolbox
        self._events = events
        self._tape = tape
        self._run_id = run_id
        self._step = step
        self._results: dict[int, Any] = {}

    @property
    def call_ids(self) -> list[str]:
        """The ids of the calls that have their result, in the order of the calls."""
        return [self._calls[place].id for place in sorted(self._results)]

    @property
    def results(self) -> list[Any]:
        """The results beside `call_ids`: the order in which calls end does not show (case 61)."""
        return [self._results[place] for place in sorted(self._results)]

    async def run(self, max_concurrency: int | None) -> None:
        """Run all calls, at most `max_concurrency` at once; 1 runs them one by one, in order.

        What goes wrong in a call is its result. Raises what an event handler raises, after the other calls
        were cancelled. Cancelling it cancels the calls; the results known by then are kept.
        """
        limit = nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)

        async def run_one(place: int) -> None:
            async with limit:
                self._results[place] = await self._run_one(place)

        try:
            async with asyncio.TaskGroup() as group:
                for place in range(len(self._calls)):
                    group.create_task(run_one(place))
        except BaseExceptionGroup as raised:
            raise raised.exceptions[0] from None

    async def _run_one(self, place: int) -> Any:
        started = await self._events.emit(self._started(place))
        began = time.monotonic()
        result, error = await self._outcome(self._calls[place], started)
        finished = await self._events.emit(
            ToolCallFinished(
                tape=self._tape,
                run_id=self._run_id,
                call=started.call,
                result=result,
                error=error,
                duration_ms=round((time.monotonic() - began) * 1000),
            )
        )
        return result if finished.result is result else _plain(finished.result)

    def _started(self, place: int) -> ToolCallStarted:
        requested = self._calls[place]
        tool = self._toolbox.find(requested.name)
        names = (encode_name(self._tape.name), encode_name(self._run_id))
        context = ToolContext(
            tape=self._tape,
            run_id=self._run_id,
            state=self._tape.context.state,
            call_id=requested.id,
            # By place and not by the model's id, which may come again in a later response.
            idempotency_key="/".join((*names, str(self._step), str(place))),
        )
        call = ToolCall(
            id=requested.id,
            tool=requested.name if tool is None else tool.name,
            arguments=_json_object(requested.arguments) or {},
            context=context,
        )
        return ToolCallStarted(tape=self._tape, run_id=self._run_id, call=call)

    async def _outcome(
        self, requested: republic.ToolCall, started: ToolCallStarted
    ) -> tuple[Any, BaseException | None]:
        """What the model reads, as JSON, and what was raised if the tool failed."""
        decision = started.decision
        if decision.action == "replace":
            return _plain(decision.result), None
        if decision.action == "deny":
            return _problem(TOOL_ERROR, decision.message or "this call was not allowed"), None
        try:
            return _plain(await self._call(requested, started.call)), None
        except asyncio.CancelledError as error:
            # Without a cancel of this task it is the tool's own, and its call needs a result like any other.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return _problem(TOOL_ERROR, "the tool was cancelled"), error
        except _BadArguments as error:
            return _problem(error.kind, str(error), error.details), error
        except BubError as error:
            return _problem(error.kind, str(error)), error
        except (Exception, SystemExit) as error:
            # Whatever a tool raises is for the model (case 56), also sys.exit: it must not end a worker.
            _log.warning("tool.failed", tool=started.call.tool, error=type(error).__name__)
            return _problem(TOOL_ERROR, f"{type(error).__name__}: {error}".removesuffix(": ")), error

    async def _call(self, requested: republic.ToolCall, call: ToolCall) -> Any:
        tool = self._toolbox.find(requested.name)
        if tool is None:
            known = ", ".join(offered.wire_name for offered in self._toolbox) or "none"
            raise NotFound(f"there is no tool {requested.name!r}; the tools are: {known}")
        if not call.arguments and _json_object(requested.arguments) is None:
            raise InvalidInput(f"the arguments of {requested.name!r} are not a JSON object; send them again")
        return await tool.run(_validated(tool, call.arguments), call.context)


class _BadArguments(InvalidInput):
    """Arguments that do not fit a tool's parameters."""

    def __init__(self, error: ValidationError) -> None:
        super().__init__("the arguments do not fit the tool's parameters")
        found = error.errors(include_url=False, include_context=False, include_input=False)
        self.details = [{"argument": ".".join(map(str, e["loc"])), "problem": e["msg"]} for e in found]


def _validated(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    # As JSON, since that is what the model sent: a date is a text, a tuple a list.
    text = json.dumps(dict(arguments))
    try:
        return tool.arguments.validate_json(text)
    except ValidationError as error:
        raise _BadArguments(error) from error


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _problem(kind: str, message: str, details: Any = None) -> dict[str, Any]:
    return {"kind": str(kind), "message": message} | ({} if details is None else {"details": details})


def _plain(value: Any) -> Any:
    """`value` as JSON that a tape can hold: models, dates and so on as pydantic writes them, others as text.

    Never raises: a result that has no JSON at all is an error that the model reads (case 57).
    """
    try:
        plain = to_jsonable_python(value, fallback=str, bytes_mode="base64")
        encode_json(plain, "the result")
    except Exception as error:  # a result's own __str__ may raise anything
        return _problem(TOOL_ERROR, f"the result, {type(value).__name__}, is not JSON: {type(error).__name__}")
    return plain
