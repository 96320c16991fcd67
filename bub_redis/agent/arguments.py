"""The arguments of tools: what a model is told about them, and how what it sends is checked."""

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from bub_redis.errors import InvalidInput

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class BadArguments(InvalidInput):
    """Arguments that do not fit a tool's parameters."""

    def __init__(self, details: list[dict[str, str]]) -> None:
        super().__init__("the arguments do not fit the tool's parameters")
        self.details = details
        """One `{"argument", "problem"}` for each."""


def parameter_hints(function: Callable[..., Any], tool_name: str) -> dict[str, Any]:
    """The types of a function's parameters; those written as text are looked up in the function's module.

    Raises InvalidInput for a function that cannot be a tool.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"tool {tool_name!r} is a generator; return a list instead")
    parameters = inspect.signature(function).parameters.values()
    annotations = {p.name: Any if p.annotation is p.empty else p.annotation for p in parameters}
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(SimpleNamespace(__annotations__=annotations), namespace, include_extras=True)
    except NameError as error:
        raise InvalidInput(f"tool {tool_name!r}: {error}; its types must be importable when it is defined") from None


def function_arguments(
    function: Callable[..., Any], tool_name: str, hints: Mapping[str, Any]
) -> TypeAdapter[dict[str, Any]]:
    """What validates arguments like a call of `function` with the parameters in `hints`, and returns them by name."""

    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise InvalidInput(f"tool {tool_name!r}: {parameter} has no name a model could use")
    parameters = [
        signature.parameters[name].replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hint)
        for name, hint in hints.items()
    ]
    collect.__annotations__ = dict(hints)
    collect.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return _adapter(collect, tool_name)


def model_arguments(model: type[BaseModel], parameter: str, tool_name: str) -> TypeAdapter[dict[str, Any]]:
    """What validates arguments as the fields of `model`, and returns the model as the value of `parameter`."""

    def collect(value: BaseModel) -> dict[str, Any]:
        return {parameter: value}

    return _adapter(typing.Annotated[model, AfterValidator(collect)], tool_name)


def _adapter(of: Any, tool_name: str) -> TypeAdapter[dict[str, Any]]:
    try:
        return TypeAdapter(cast(Any, of))
    except PydanticUserError as error:
        raise InvalidInput(f"tool {tool_name!r}: {_first_line(error)}") from None


def json_schema(adapter: TypeAdapter[dict[str, Any]], tool_name: str) -> dict[str, Any]:
    """The JSON schema that the model is shown. Raises InvalidInput for types that have none."""
    try:
        return adapter.json_schema()
    except PydanticUserError as error:
        raise InvalidInput(f"tool {tool_name!r}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def validated(adapter: TypeAdapter[dict[str, Any]], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in the types of the tool's parameters. Raises BadArguments."""
    # As JSON, since that is what the model sent: a date is a text, a tuple a list.
    text = json.dumps(dict(arguments))
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        problems = [{"argument": ".".join(map(str, e["loc"])), "problem": e["msg"]} for e in found]
        raise BadArguments(problems) from error


def fitting(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as they are, if they fit what the schema says of the object itself. Raises BadArguments.

    Which names there must and may be, and the plain types of their values; what lies deeper is the tool's to check.
    """
    properties = schema.get("properties", {})
    problems = [
        {"argument": name, "problem": "Missing required argument"}
        for name in schema.get("required", ())
        if name not in arguments
    ]
    for name, value in arguments.items():
        if name not in properties:
            if schema.get("additionalProperties") is False:
                problems.append({"argument": name, "problem": "Unexpected argument"})
        elif not _is_of_type(value, properties[name]):
            problems.append({"argument": name, "problem": f"Input should be {properties[name]['type']}"})
    if problems:
        raise BadArguments(problems)
    return dict(arguments)


def _is_of_type(value: Any, schema: Any) -> bool:
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    if not isinstance(wanted, str) or wanted not in _JSON_TYPES:
        return True
    if isinstance(value, bool):
        return wanted == "boolean"
    return isinstance(value, _JSON_TYPES[wanted])
