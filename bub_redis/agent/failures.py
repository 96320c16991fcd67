"""What goes wrong with a model call, as a ModelError: cause, the provider's words, remedy, no secret."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from republic import errors
from republic.auth import HeaderAuth
from republic.providers import Provider

from bub_redis.agent.overflow import is_context_overflow
from bub_redis.errors import Action, ContextOverflow, ModelError

MAX_PROVIDER_TEXT_CHARS = 500
"""How much of a provider's own words an error message repeats."""

_MIN_SECRET_CHARS = 8
_PASSING_STATUSES = frozenset({408, 409, 425, 429})


@contextmanager
def model_errors(
    spec: str, otherwise: str, *, action: Action = Action.STOP, provider: Provider | None = None
) -> Iterator[None]:
    """Raise as ModelError what Republic raises, with the original as its cause.

    `otherwise` and `action` are for errors that are not Republic's own: it lets those of Python through where
    a request cannot be written, and where a chunk is not JSON or has another shape than it should.
    """
    try:
        yield
    except errors.RepublicError as error:
        raise _translated(spec, error, provider) from error
    except (ValueError, TypeError, LookupError, AttributeError, httpx2.InvalidURL) as error:
        raise ModelError(f"{spec} {otherwise}: {type(error).__name__}: {_line(str(error))}", action=action) from error


def _translated(spec: str, error: errors.RepublicError, provider: Provider | None) -> ModelError:
    if is_context_overflow(error):
        said = _words(getattr(error, "body", str(error)), provider)
        return ContextOverflow(f"the context is larger than {spec} takes: {said}; ask for less, or hand off")
    match error:
        case errors.APIStatusError():
            return _refused(spec, error, provider)
        case errors.APITimeoutError():
            return ModelError(f"{spec} did not answer in time; try again later", action=Action.RETRY)
        case errors.APIConnectionError():
            remedy = f"try again later; if it stays, check {_variable(spec, 'API_BASE')}"
            return ModelError(f"{spec}: no connection ({_network_cause(error)}); {remedy}", action=Action.RETRY)
        case errors.StreamIncompleteError():
            remedy = f"try again; if it stays, check {_variable(spec, 'API_BASE')}"
            return ModelError(f"{spec} stopped in the middle of its answer; {remedy}", action=Action.RETRY)
        case errors.APIResponseError():
            return _failed_inside(spec, error, provider)
        case errors.AuthenticationError():
            return ModelError(f"{spec}: {_words(str(error), provider)}; set {key_variable(spec)}")
        case _:
            return ModelError(f"{spec}: {_words(str(error), provider)}")


def _refused(spec: str, error: errors.APIStatusError, provider: Provider | None) -> ModelError:
    status = error.status_code
    passing = status in _PASSING_STATUSES or status >= 500
    if passing:
        remedy = "try again later"
    elif status in {401, 403}:
        remedy = f"set {key_variable(spec)} to a key that may use this model"
    elif status == 404:
        remedy = f"check the model's name and {_variable(spec, 'API_BASE')}"
    else:
        remedy = "the same request will be refused again"
    said = f"{spec} answered HTTP {status}: {_words(error.body, provider)}"
    return ModelError(f"{said}; {remedy}", action=Action.RETRY if passing else Action.STOP)


def _failed_inside(spec: str, error: errors.APIResponseError, provider: Provider | None) -> ModelError:
    """An error inside a response that began well: the request was accepted, so it may well work later."""
    told = _loaded(str(error))
    codes = [told.get(key) for key in ("code", "status")] if isinstance(told, dict) else []
    refused = any(isinstance(code, int) and 400 <= code < 500 and code not in _PASSING_STATUSES for code in codes)
    remedy = "the same request will be refused again" if refused else "try again later"
    said = f"{spec} failed in the middle of its answer: {_words(str(error), provider)}"
    return ModelError(f"{said}; {remedy}", action=Action.STOP if refused else Action.RETRY)


def _network_cause(error: errors.APIConnectionError) -> str:
    cause = error.__cause__
    # Other errors quote what was to be sent, the header with the key among it.
    if isinstance(cause, httpx2.NetworkError | httpx2.RemoteProtocolError):
        return _line(str(cause)) or type(cause).__name__
    return type(cause).__name__


def key_variable(spec: str) -> str:
    """The variable that holds the key of a model's provider."""
    return _variable(spec, "API_KEY")


def http_status(error: BaseException) -> int | None:
    """The HTTP status with which a provider refused; None where there was none."""
    refusal = error.__cause__
    return refusal.status_code if isinstance(refusal, errors.APIStatusError) else None


def _variable(spec: str, suffix: str) -> str:
    return f"REPUBLIC_{spec.partition(':')[0].upper().replace('-', '_')}_{suffix}"


def _words(body: str, provider: Provider | None) -> str:
    """What the provider says itself (case 49), on one line, without the key that some of them repeat."""
    words = _message_in(_loaded(body)) or body
    for secret in _secrets(provider):
        words = words.replace(secret, "***")
    return _line(words) or "nothing more"


def _loaded(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _message_in(told: Any) -> str | None:
    """The message, in the shapes error objects have: in a list, in `error`, or under another key."""
    while not isinstance(told, str):
        match told:
            case [first, *_]:
                told = first
            case dict():
                told = next((told[key] for key in ("error", "message", "detail") if told.get(key)), None)
            case _:
                return None
    return told


def _line(text: str) -> str:
    line = re.sub(r"\s+", " ", text[: 4 * MAX_PROVIDER_TEXT_CHARS]).strip()
    return line if len(line) <= MAX_PROVIDER_TEXT_CHARS else f"{line[:MAX_PROVIDER_TEXT_CHARS]}…"


def _secrets(provider: Provider | None) -> list[str]:
    """The values that authentication puts into a request's headers."""
    if provider is None or not isinstance(provider.auth, HeaderAuth):
        return []
    request = httpx2.Request("GET", "http://localhost")
    before = set(request.headers.items())
    next(provider.auth.auth_flow(request))
    added = [value.removeprefix("Bearer ") for name, value in request.headers.items() if (name, value) not in before]
    return [value for value in added if len(value) >= _MIN_SECRET_CHARS]
