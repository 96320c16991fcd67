"""Tools: functions that a model may call, typed or with a JSON schema."""

import asyncio
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, overload

import republic
from pydantic import BaseModel, TypeAdapter

from bub_redis.agent.arguments import (
    fitting,
    function_arguments,
    json_schema,
    model_arguments,
    parameter_hints,
    validated,
)
from bub_redis.agent.threads import in_own_thread
from bub_redis.errors import InvalidInput
from bub_redis.tape import Tape

_WIRE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know about the call it serves; injected into the parameter annotated with it."""

    tape: Tape
    """The run's tape: what is appended here is committed with the run."""
    run_id: str
    state: MutableMapping[str, Any]
    """The run's state, shared with prompt sections and handlers."""
    call_id: str
    """The id that the model gave the call; models use ids twice."""
    idempotency_key: str
    """Stable for this call of this run and unique to it: hand it to services that drop repeats."""


@dataclass(frozen=True)
class Tool:
    """A function that a model may call: `Tool("stock", handler, "Look up stock.", {"type": "object", ...})`.

    `tool` makes one from a typed function, or from a pydantic model. Raises InvalidInput for a name or a handler that
    no model can call.
    """

    name: str
    handler: Callable[..., Any] = field(repr=False)
    """Sync or async; gets the arguments by name."""
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}}, repr=False)
    """JSON schema of the arguments, an object."""
    arguments: TypeAdapter[dict[str, Any]] | None = field(default=None, repr=False, compare=False)
    """Validates the arguments of a call and turns them into the handler's; without it the schema's own names and plain
    types are checked."""
    context_parameter: str | None = None
    """The parameter that takes the ToolContext; by default the one that is annotated with it."""
    idempotent: bool = False
    """Whether a call whose outcome is unknown may run again."""
    timeout_s: float | None = None
    """The most one call may take."""
    asks_for: Literal["handoff", "reset"] | None = None
    """What the loop does at the end of a step in which a call of it went well: the tape is not cut while calls run.
    Such a tool returns `{"anchor", "summary"}` for a handoff, `{"message"}` for a reset."""

    def __post_init__(self) -> None:
        if not _WIRE_NAME.fullmatch(wire_name(self.name)):
            raise InvalidInput(f"a tool's name is 1 to 64 of A-Z a-z 0-9 _ - and dots, not {self.name!r}; pass name=")
        hints = parameter_hints(self.handler, self.name)
        if self.context_parameter is None:
            found = next((name for name, hint in hints.items() if _is_context(hint)), None)
            object.__setattr__(self, "context_parameter", found)

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call as the handler takes them. Raises BadArguments, which says what does not fit."""
        if self.arguments is None:
            return fitting(self.parameters, arguments)
        return validated(self.arguments, arguments)

    @property
    def wire_name(self) -> str:
        """The name as the model sees it: providers refuse dots."""
        return wire_name(self.name)

    @property
    def schema(self) -> republic.Tool:
        """What the model is offered."""
        return republic.Tool(self.wire_name, self.description, self.parameters)

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Call the handler with validated arguments and return what it returns.

        A sync handler runs in a thread of its own, which neither a cancel, the deadline nor the end of the loop stops:
        nobody waits for its outcome then. Raises what the handler raises, and TimeoutError after `timeout_s`.
        """
        if self.context_parameter is not None:
            arguments = {**arguments, self.context_parameter: context}
        deadline = asyncio.timeout(self.timeout_s)
        try:
            async with deadline:
                if inspect.iscoroutinefunction(self.handler):
                    return await self.handler(**arguments)
                result = await in_own_thread(partial(self.handler, **arguments), f"tool {self.name}")
                return await result if inspect.isawaitable(result) else result
        except TimeoutError:
            if not deadline.expired():  # the tool's own
                raise
            raise TimeoutError(f"no result within {self.timeout_s:g} s") from None


def wire_name(name: str) -> str:
    """`name` as it reaches a model: with underscores for dots."""
    return name.replace(".", "_")


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    model: type[BaseModel] | None = None,
    idempotent: bool = False,
    timeout_s: float | None = None,
    asks_for: Literal["handoff", "reset"] | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    model: type[BaseModel] | None = None,
    idempotent: bool = False,
    timeout_s: float | None = None,
    asks_for: Literal["handoff", "reset"] | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a typed function, sync or async, a tool; a decorator with or without arguments.

    The model sees the function's name, its docstring and the JSON schema of its parameters, and pydantic
    validates what the model sends. A parameter annotated `ToolContext` is injected and not shown. With `model`
    the arguments are that pydantic model's fields, and the function's other parameter gets the model.
    `idempotent=True` promises that the same call may run twice: only then is a call run again whose outcome a
    crash left unknown. `timeout_s` is the most one call may take; `asks_for` is as in Tool. Raises InvalidInput
    for a function that cannot be a tool.
    """

    def decorate(function: Callable[..., Any]) -> Tool:
        tool_name = name if name is not None else getattr(function, "__name__", "")
        made = Tool(
            tool_name,
            function,
            inspect.getdoc(function) or "" if description is None else description,
            idempotent=idempotent,
            timeout_s=timeout_s,
            asks_for=asks_for,
        )
        adapter = _arguments(made, model)
        return replace(made, arguments=adapter, parameters=json_schema(adapter, tool_name))

    return decorate if function is None else decorate(function)


def _arguments(made: Tool, model: type[BaseModel] | None) -> TypeAdapter[dict[str, Any]]:
    hints = parameter_hints(made.handler, made.name)
    shown = {name: hint for name, hint in hints.items() if not _is_context(hint)}
    if model is None:
        return function_arguments(made.handler, made.name, shown)
    if len(shown) != 1:
        raise InvalidInput(f"tool {made.name!r} takes its {model.__name__} in one parameter, not in {len(shown)}")
    return model_arguments(model, next(iter(shown)), made.name)


def _is_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in typing.get_args(hint)


class Toolbox:
    """The tools of an agent, found by the name that the model uses."""

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        """Take tools and plain functions. Raises InvalidInput if two of them look the same to a model."""
        self._tools: dict[str, Tool] = {}
        for item in tools:
            added = item if isinstance(item, Tool) else tool(item)
            if twin := self._tools.get(added.wire_name):
                raise InvalidInput(f"tools {twin.name!r} and {added.name!r} have the same name for a model")
            self._tools[added.wire_name] = added

    def add_missing(self, added: Tool) -> None:
        """Add a tool unless there is one that looks the same to a model."""
        self._tools.setdefault(added.wire_name, added)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def find(self, name: str) -> Tool | None:
        """The tool that a model means by `name`, with dots or underscores."""
        return self._tools.get(wire_name(name))
