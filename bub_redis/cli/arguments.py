"""Arguments that several commands take, declared once, and what a command line cannot say by a type."""

import json
import sys
from typing import Annotated, Any

import typer

from bub_redis.errors import InvalidInput

Session = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="The session, e.g. customer-42: its turns run one by one, in order."),
]
TurnId = Annotated[str, typer.Argument(metavar="TURN", help="The turn's id, as `turn enqueue` printed it.")]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="What the user says; `-` reads it from stdin.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one value per line, for programs.")]

_EXAMPLE = """write for example '{"key": "value"}'"""


def json_object(text: str | None, option: str) -> dict[str, Any]:
    """The JSON object that an option holds; empty where it was not given. Raises InvalidInput."""
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{option} is not JSON ({error}); {_EXAMPLE}") from None
    except RecursionError:
        raise InvalidInput(f"{option} is nested too deeply") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{option} must be a JSON object, not {type(value).__name__}; {_EXAMPLE}")
    return value


def text_or_stdin(text: str) -> str:
    """`text`, or all of stdin for `-`. Raises InvalidInput if that is not UTF-8."""
    if text != "-":
        return text
    if sys.stdin is None:
        raise InvalidInput("there is no stdin to read `-` from: it is closed")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise InvalidInput("what comes on stdin is not UTF-8") from None
