"""Every error this project raises, one tree. Each class answers one question: what should the caller do?

    BubError
    ├── InvalidInput         stop: the caller passed something that can never work (also a ValueError)
    ├── ConfigError          stop: a setting is wrong (also a ValueError)
    ├── NotFound             stop: no such anchor, turn, session or handle (also a LookupError)
    ├── Conflict             stop: the id is taken by something else, or the tape is not what it was
    │   └── Fenced           stop this attempt: another one was granted the session since
    ├── SessionBusy          retry: another turn or fork holds the session
    ├── QueueFull            retry later: a bound on turns that have not ended is reached
    ├── Outage               retry: a server does not answer, or answers that it cannot write now
    │   └── TapeBlocked      retry after `bub-redis tape repair`: the tape refuses every write
    ├── ServerUnfit          stop: the server can be reached and must not be used
    ├── StoreClosed          stop: used after close, or in another event loop than before
    ├── TimedOut             retry: a run took longer than it may
    └── ModelError           see `action`: a model call failed
        └── ContextOverflow  stop: the context does not fit, also after the automatic handoff

Errors of tools never leave a turn: they become results that the model reads.
"""

from enum import StrEnum


class Action(StrEnum):
    """What the caller of a failed operation should do."""

    RETRY = "retry"
    STOP = "stop"


class ErrorKind(StrEnum):
    """The kind of an error, for decisions and for `error` entries on a tape. The values are Bub's where Bub has one."""

    INVALID_INPUT = "invalid_input"
    CONFIG = "config"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    BUSY = "busy"
    TEMPORARY = "temporary"
    BLOCKED = "blocked"
    UNFIT = "unfit"
    CLOSED = "closed"
    TIMED_OUT = "timed_out"
    PROVIDER = "provider"
    CONTEXT_OVERFLOW = "context_overflow"


class BubError(Exception):
    """The root of the tree. `str()` is one line for a person, with the cause and the remedy, without secrets."""

    kind: ErrorKind
    action: Action = Action.STOP


class InvalidInput(BubError, ValueError):
    """An argument that can never work: nothing was changed."""

    kind = ErrorKind.INVALID_INPUT


class ConfigError(BubError, ValueError):
    """A setting is missing, unknown or out of its range."""

    kind = ErrorKind.CONFIG


class NotFound(BubError, LookupError):
    """No anchor, turn, session or handle of that name."""

    kind = ErrorKind.NOT_FOUND


class Conflict(BubError):
    """The id is in use for something else, or the tape changed under the caller: nothing was written."""

    kind = ErrorKind.CONFLICT


class Fenced(Conflict):
    """The session was granted to another attempt or fork since: this one may not write any more."""


class SessionBusy(BubError):
    """Another turn, fork, reset or delete works on the session. Nothing was changed; try again later."""

    kind = ErrorKind.BUSY
    action = Action.RETRY


class QueueFull(BubError):
    """As many turns or messages as are taken have not ended yet. Nothing was changed; the text carries the numbers."""

    kind = ErrorKind.BUSY
    action = Action.RETRY


class Outage(BubError):
    """A server does not answer or cannot serve now (no connection, LOADING, READONLY, out of memory).

    Never the same as an empty answer: a read that meets an outage raises.
    """

    kind = ErrorKind.TEMPORARY
    action = Action.RETRY


class TapeBlocked(Outage):
    """The tape refuses every write until it is repaired: a key of another type, or an entry written by hand."""

    kind = ErrorKind.BLOCKED


class ServerUnfit(BubError):
    """The server answers, and using it would break the promise: too old, or it may drop tapes."""

    kind = ErrorKind.UNFIT


class StoreClosed(BubError):
    """The store or client was used after it was closed, or in another event loop than before."""

    kind = ErrorKind.CLOSED


class TimedOut(BubError):
    """A run took longer than its agent allows. What it did until then stands on the tape."""

    kind = ErrorKind.TIMED_OUT
    action = Action.RETRY


class ModelError(BubError):
    """A model call failed. `action` says whether the same call may succeed later."""

    kind = ErrorKind.PROVIDER

    def __init__(self, message: str, *, action: Action = Action.STOP) -> None:
        super().__init__(message)
        self.action = action


class ContextOverflow(ModelError):
    """The context is larger than the model takes."""

    kind = ErrorKind.CONTEXT_OVERFLOW
