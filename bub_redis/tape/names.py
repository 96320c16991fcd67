"""Names of sessions, tapes and turns: which are taken, and how they are written into keys and file names.

Percent-encoding is injective and nothing is normalised, so two names never share a key (cases 64 and 75).
"""

import hashlib
from pathlib import Path
from urllib.parse import quote

from bub_redis.errors import InvalidInput

MAX_NAME_CHARS = 200
SIDECAR_MARKER = "__sidecar__"


def _check(name: str, what: str) -> str:
    if not name:
        raise InvalidInput(f"{what} must be a text of 1 to {MAX_NAME_CHARS} characters, not {name!r}")
    if len(name) > MAX_NAME_CHARS:
        raise InvalidInput(f"{what} has {len(name)} characters; at most {MAX_NAME_CHARS} are taken")
    if any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in name):
        raise InvalidInput(f"{what} {name!r} holds a control character")
    if any(0xD800 <= ord(char) < 0xE000 for char in name):
        raise InvalidInput(f"{what} {name!r} holds half of a character (a lone surrogate)")
    return name


def check_tape_name(name: str) -> str:
    """Return `name` if a tape may have it. Raises InvalidInput."""
    return _check(name, "a tape's name")


def check_session_id(session_id: str) -> str:
    """Return `session_id` if a session may have it. Raises InvalidInput, also for the marker of sidecars."""
    if SIDECAR_MARKER in _check(session_id, "a session id"):
        raise InvalidInput(f"a session id must not hold {SIDECAR_MARKER!r}: that marks a sidecar's tape")
    return session_id


def check_turn_id(turn_id: str) -> str:
    """Return `turn_id` if a sender may use it. Raises InvalidInput, also for `~`, which marks retries of dead turns."""
    if "~" in _check(turn_id, "a turn id"):
        raise InvalidInput("a turn id must not hold '~': that marks the retry of a dead turn")
    return turn_id


def encode_name(name: str) -> str:
    """Percent-encode all bytes outside `A-Za-z0-9._~@+-`."""
    return quote(name, safe="@+")


def session_tape_name(session_id: str, workspace: Path | None = None) -> str:
    """The name of a session's tape: the session id as given, or a hash of both in a workspace, as Bub names it.

    Raises InvalidInput for an id that no session may have.
    """
    check_session_id(session_id)
    if workspace is None:
        return session_id
    return f"{_short_hash(str(workspace.resolve()))}__{_short_hash(session_id)}"


def _short_hash(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:16]
