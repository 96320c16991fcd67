"""Names of sessions, tapes and turns: which are taken, and how they are written into keys and file names.

Percent-encoding is injective and nothing is normalised, so two names never share a key (cases 64 and 75).
"""

import hashlib
import re
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from bub_redis.errors import InvalidInput

MAX_NAME_CHARS = 200
SIDECAR_MARKER = "__sidecar__"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_HALF = re.compile("[\ud800-\udfff]")
_SIDECAR_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def _check(name: object, what: str) -> str:
    if not (isinstance(name, str) and name):
        raise InvalidInput(f"{what} must be a text of 1 to {MAX_NAME_CHARS} characters, not {name!r}")
    if len(name) > MAX_NAME_CHARS:
        raise InvalidInput(f"{what} has {len(name)} characters; at most {MAX_NAME_CHARS} are taken")
    if _CONTROL.search(name):
        raise InvalidInput(f"{what} {name!r} holds a control character")
    if _HALF.search(name):
        raise InvalidInput(f"{what} {name!r} holds half of a character (a lone surrogate)")
    return name


def check_tape_name(name: str) -> str:
    """Return `name` if a tape may have it; `<tape>__sidecar__<name>` for a sidecar's. Raises InvalidInput."""
    owner, marker, sidecar = name.partition(SIDECAR_MARKER)
    _check_owner(owner, "a tape's name")
    if marker:
        check_sidecar_name(sidecar)
    return name


def check_sidecar_name(name: str) -> str:
    """Return `name` if a sidecar may have it: 1 to 32 of `a-z 0-9 _ -`, a letter first. Raises InvalidInput."""
    if not _SIDECAR_NAME.fullmatch(name) or SIDECAR_MARKER in name:
        raise InvalidInput(f"a sidecar's name is 1 to 32 of a-z 0-9 _ - with a letter first, not {name!r}")
    return name


def owner_tape(name: str) -> str:
    """The tape that a sidecar's tape belongs to; any other tape is its own owner."""
    return name.partition(SIDECAR_MARKER)[0]


def check_session_id(session_id: str) -> str:
    """Return `session_id` if a session may have it. Raises InvalidInput, also for the marker of sidecars."""
    return _check_owner(session_id, "a session id")


def _check_owner(name: str, what: str) -> str:
    # Also the beginning of the marker at the end: with a sidecar's name behind it, it would be found too early.
    if (_check(name, what) + SIDECAR_MARKER).find(SIDECAR_MARKER) != len(name):
        raise InvalidInput(f"{what} must not hold {SIDECAR_MARKER!r} or end in its beginning: that marks a sidecar")
    return name


def check_turn_id(turn_id: str) -> str:
    """Return `turn_id` if a sender may use it. Raises InvalidInput, also for `~`, which marks retries of dead turns."""
    if "~" in _check(turn_id, "a turn id"):
        raise InvalidInput("a turn id must not hold '~': that marks the retry of a dead turn")
    return turn_id


@lru_cache(maxsize=10_000)
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
