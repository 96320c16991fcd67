"""Running the calls of one response, at once or a few at a time: one result for each, whatever happens."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import republic
import structlog
from pydantic_core import to_jsonable_python

from bub_redis.agent.arguments import BadArguments
from bub_redis.agent.events import ToolCall, ToolCallFinished, ToolCallStarted
from bub_redis.agent.resume import Resume
from bub_redis.agent.scope import Scope
from bub_redis.agent.tools import Toolbox, ToolContext
from bub_redis.errors import BubError, InvalidInput, NotFound
from bub_redis.tape.entry import encode_json
from bub_redis.tape.names import encode_name
from bub_redis.tape.replay import INTERRUPTED
from bub_redis.tape.spill import preview

_log = structlog.get_logger(__name__)

TOOL_ERROR = "tool"
"""Bub's kind of an error that a tool raised, or that no such tool exists."""

MAX_PROBLEM_CHARS = 4_000
"""How much of an error's words the model reads (case 123)."""


class ToolCalls:
    """The calls of one model response and, as far as they are known, their results."""

    def __init__(
        self,
        calls: Sequence[republic.ToolCall],
        *,
        toolbox: Toolbox,
        scope: Scope,
        step: int,
        earlier: Resume | None = None,
    ) -> None:
        """The calls of a response; `earlier` is what an attempt that died knew of these very calls."""
        self._earlier = earlier or Resume()
        self._calls = calls
        self._toolbox = toolbox
        self._scope = scope
        self._where: dict[str, Any] = {**scope.where, "step": step}
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
        key = self._idempotency_key(place)
        if key in self._earlier.results:
            return self._earlier.results[key]
        if key in self._earlier.started and not self._may_run_again(place):
            return INTERRUPTED
        started = await self._scope.events.emit(self._started(place))
        began = time.monotonic()
        result, error = await self._outcome(self._calls[place], started)
        finished = ToolCallFinished(
            **self._where,
            call=started.call,
            result=result,
            error=error,
            duration_ms=round((time.monotonic() - began) * 1000),
        )
        await self._deliver(finished)
        return finished.result

    async def _deliver(self, finished: ToolCallFinished) -> None:
        """Tell the result. What handlers put in its place is made JSON, then spilled or cut if it is too large."""
        known = finished.result
        await self._scope.events.agents.emit(finished)
        if finished.result is not known:
            finished.result = _plain(finished.result)
        await self._scope.spilling.emit(finished)
        finished.result = _capped(finished.result, self._scope.max_result_bytes)
        await self._scope.events.own.emit(finished)

    def _idempotency_key(self, place: int) -> str:
        # By place and not by the model's id, which may come again in a later response.
        names = (encode_name(self._scope.tape.name), encode_name(self._scope.run_id))
        return "/".join((*names, str(self._step), str(place)))

    def _may_run_again(self, place: int) -> bool:
        tool = self._toolbox.find(self._calls[place].name)
        return tool is not None and tool.idempotent

    def _started(self, place: int) -> ToolCallStarted:
        scope, requested = self._scope, self._calls[place]
        tool = self._toolbox.find(requested.name)
        context = ToolContext(
            tape=scope.tape,
            run_id=scope.run_id,
            state=scope.tape.context.state,
            call_id=requested.id,
            idempotency_key=self._idempotency_key(place),
        )
        call = ToolCall(
            id=requested.id,
            tool=requested.name if tool is None else tool.name,
            arguments=_json_object(requested.arguments) or {},
            context=context,
        )
        return ToolCallStarted(**self._where, call=call)

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
        except BadArguments as error:
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
        return await tool.run(tool.checked(call.arguments), call.context)


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _problem(kind: str, message: str, details: Any = None) -> dict[str, Any]:
    told = {"kind": str(kind), "message": preview(message, MAX_PROBLEM_CHARS)}
    return told | ({} if details is None else {"details": details})


def _plain(value: Any) -> Any:
    """`value` as JSON that a tape can hold: models, dates and so on as pydantic writes them, others as text.

    Never raises: a result that has no JSON at all is an error that the model reads (case 57).
    """
    if type(value) is str:  # any text is JSON; a large one is not encoded only to find that out
        return value
    try:
        plain = to_jsonable_python(value, fallback=str, bytes_mode="base64")
        encode_json(plain, "the result")
    except Exception as error:  # a result's own __str__ may raise anything
        return _problem(TOOL_ERROR, f"the result, {type(value).__name__}, is not JSON: {type(error).__name__}")
    return plain


def _capped(result: Any, max_bytes: int) -> Any:
    """`result`, or what the model reads in place of one that is too large for the tape and the context alike."""
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    # Cheap for the many that are small: no character takes more than four bytes.
    if len(text) * 4 <= max_bytes or (size := len(text.encode(errors="surrogatepass"))) <= max_bytes:
        return result
    message = f"the result has {size} bytes, more than the {max_bytes} that one may have; ask for less"
    return _problem(TOOL_ERROR, message, {"preview": preview(text)})
