"""Tools: typed Python functions that a model may call."""

import asyncio
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast, overload

import republic
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

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
    """A function that a model may call, with the JSON schema that the model is shown."""

    name: str
    handler: Callable[..., Any] = field(repr=False)
    description: str
    parameters: Mapping[str, Any] = field(repr=False)
    """JSON schema of the arguments, an object."""
    arguments: TypeAdapter[dict[str, Any]] = field(repr=False, compare=False)
    """Validates the arguments of a call and turns them into the handler's types."""
    context_parameter: str | None = None
    """The parameter that takes the ToolContext."""
    idempotent: bool = False
    """Whether a call whose outcome is unknown may run again."""
    timeout_s: float | None = None

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

        A sync handler runs in a thread, which neither a cancel nor the deadline stops: nobody waits for its outcome
        then. Raises what the handler raises, and TimeoutError after `timeout_s`.
        """
        if self.context_parameter is not None:
            arguments = {**arguments, self.context_parameter: context}
        deadline = asyncio.timeout(self.timeout_s)
        try:
            async with deadline:
                if inspect.iscoroutinefunction(self.handler):
                    return await self.handler(**arguments)
                result = await asyncio.to_thread(_call_in_thread, self.handler, arguments)
                return await result if inspect.isawaitable(result) else result
        except TimeoutError:
            if not deadline.expired():  # the tool's own
                raise
            raise TimeoutError(f"no result within {self.timeout_s:g} s") from None


def _call_in_thread(handler: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return handler(**arguments)
    except StopIteration as error:
        # No future can carry a StopIteration: on Python 3.11 the caller would wait for ever.
        raise RuntimeError("StopIteration") from error


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
    idempotent: bool = False,
    timeout_s: float | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    timeout_s: float | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a typed function, sync or async, a tool; a decorator with or without arguments.

    The model sees the function's name, its docstring and the JSON schema of its parameters, and pydantic
    validates what the model sends. A parameter annotated `ToolContext` is injected and not shown.
    `idempotent=True` promises that the same call may run twice: only then is a call run again whose outcome a
    crash left unknown. `timeout_s` is the most one call may take. Raises InvalidInput for a function that
    cannot be a tool.
    """

    def decorate(function: Callable[..., Any]) -> Tool:
        tool_name = _checked_name(name if name is not None else getattr(function, "__name__", ""))
        hints = _parameter_hints(function, tool_name)
        adapter = _arguments_adapter(function, tool_name, hints)
        return Tool(
            name=tool_name,
            handler=function,
            description=inspect.getdoc(function) or "" if description is None else description,
            parameters=_schema(adapter, tool_name),
            arguments=adapter,
            context_parameter=next((name for name, hint in hints.items() if _is_context(hint)), None),
            idempotent=idempotent,
            timeout_s=timeout_s,
        )

    return decorate if function is None else decorate(function)


def _checked_name(name: str) -> str:
    if not _WIRE_NAME.fullmatch(wire_name(name)):
        raise InvalidInput(f"a tool's name is 1 to 64 of A-Z a-z 0-9 _ - and dots, not {name!r}; pass name=")
    return name


def _parameter_hints(function: Callable[..., Any], tool_name: str) -> dict[str, Any]:
    """The types of a function's parameters; those written as text are looked up in the function's module."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"tool {tool_name!r} is a generator; return a list instead")
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise InvalidInput(f"tool {tool_name!r}: {parameter} has no name a model could use")
    annotations = {p.name: Any if p.annotation is p.empty else p.annotation for p in parameters}
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(SimpleNamespace(__annotations__=annotations), namespace, include_extras=True)
    except NameError as error:
        raise InvalidInput(f"tool {tool_name!r}: {error}; its types must be importable when it is defined") from None


def _is_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in typing.get_args(hint)


def _arguments_adapter(
    function: Callable[..., Any], tool_name: str, hints: Mapping[str, Any]
) -> TypeAdapter[dict[str, Any]]:
    """What validates arguments like a call of `function`, without its context, and returns them by name."""

    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    shown = {name: hint for name, hint in hints.items() if not _is_context(hint)}
    signature = inspect.signature(function)
    parameters = [
        signature.parameters[name].replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hint)
        for name, hint in shown.items()
    ]
    collect.__annotations__ = shown
    collect.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    try:
        return TypeAdapter(cast(Any, collect))
    except PydanticUserError as error:
        raise InvalidInput(f"tool {tool_name!r}: {_first_line(error)}") from None


def _schema(adapter: TypeAdapter[dict[str, Any]], tool_name: str) -> dict[str, Any]:
    try:
        return adapter.json_schema()
    except PydanticUserError as error:
        raise InvalidInput(f"tool {tool_name!r}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


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

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def find(self, name: str) -> Tool | None:
        """The tool that a model means by `name`, with dots or underscores."""
        return self._tools.get(wire_name(name))
