"""Exit codes: the table that scripts may rely on, and which error ends in which of them."""

from enum import IntEnum

from bub_redis.errors import (
    BubError,
    ConfigError,
    Conflict,
    InvalidInput,
    NotFound,
    Outage,
    QueueFull,
    ServerUnfit,
    SessionBusy,
)


class ExitCode(IntEnum):
    """How a command ends.

    A worker whose event loop hangs for good ends itself with 70 (see `worker.keeper`).
    """

    OK = 0
    FAILED = 1
    """The command worked and what it was asked to do did not: a turn failed, a model refused."""
    USAGE = 2
    """Wrong usage: an argument, a setting or an agent's name that can never work."""
    NOT_FOUND = 3
    """No such session, turn or anchor."""
    CONFLICT = 4
    """The id is taken by something else, or the tape is not what it was."""
    SERVER = 5
    """A server does not answer, cannot serve now or must not be used, or session or queue are busy: try again later."""
    INTERRUPTED = 130
    """Ended by Ctrl-C."""
    BROKEN_PIPE = 141
    """Whoever read the output went away."""
    TERMINATED = 143
    """Ended by SIGTERM or a closed terminal."""


_CODES: tuple[tuple[type[BubError], ExitCode], ...] = (
    (InvalidInput, ExitCode.USAGE),
    (ConfigError, ExitCode.USAGE),
    (NotFound, ExitCode.NOT_FOUND),
    (Conflict, ExitCode.CONFLICT),
    (Outage, ExitCode.SERVER),
    (ServerUnfit, ExitCode.SERVER),
    (SessionBusy, ExitCode.SERVER),
    (QueueFull, ExitCode.SERVER),
)


def exit_code(error: BubError) -> ExitCode:
    """The code that a command ends with when it fails with `error`."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


SUMMARY = (
    "Exit codes: 0 done · 1 failed, e.g. the turn · 2 wrong usage or settings · 3 not found · "
    "4 conflict · 5 server unreachable, unfit or busy · 130 Ctrl-C · 141 the reader of the output left · 143 SIGTERM"
)
"""The table in one line, for the help."""
