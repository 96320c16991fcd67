"""What redis-py raises, as errors of ours: which server, what is wrong with it, and what to do.

Replies of the server are named by their code only: redis-py adds the command to them, which holds user text.
"""

import os
from socket import gaierror
from ssl import SSLCertVerificationError, SSLError

import redis.exceptions as redis_errors

from bub_redis.errors import BubError, ConfigError, Outage, ServerUnfit, TapeBlocked
from bub_redis.storage.sentinel import NoSentinel, UnknownService

_MOVING = ("a slot is on its way to another node", "try again in a while")
_TEMPORARY = {
    "LOADING": ("it is loading its data", "try again in a while"),
    "READONLY": ("it is a replica, which takes no writes", "name the primary in the URL"),
    "OOM": ("its memory is full", "raise maxmemory, then delete tapes"),
    "MISCONF": ("it cannot save to disk (MISCONF)", "see its log"),
    "MASTERDOWN": ("it is a replica that has lost its primary (MASTERDOWN)", "name the primary in the URL"),
    "NOREPLICAS": ("too few replicas are in step (NOREPLICAS)", "see what is wrong with them"),
    "BUSY": ("somebody's script keeps it busy (BUSY)", "wait for its end, or SCRIPT KILL"),
    "CLUSTERDOWN": ("the cluster is not whole (CLUSTERDOWN)", "see `redis-cli --cluster check`"),
    "TRYAGAIN": _MOVING,
    "MOVED": _MOVING,
    "ASK": _MOVING,
    "UNBLOCKED": ("it has become a replica (UNBLOCKED)", "try again in a while"),
}
"""The codes of refusals that pass: what is the matter, and the remedy."""
_NO_RIGHT = ("ACL failure in script", "can't run this command", "no permissions to access")
"""How servers say within a script that a right is missing: Valkey, Redis 7.0, and later ones."""
_CODES: dict[type[Exception], str] = {
    redis_errors.BusyLoadingError: "LOADING",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.OutOfMemoryError: "OOM",
}
"""The codes that redis-py takes away for a class of its own."""


def translated(error: Exception, address: str) -> BubError:
    """What redis-py raised, as an error of ours that names the server and what to do."""
    cause = error.__cause__
    if isinstance(cause, redis_errors.RedisError) and not isinstance(cause, redis_errors.ExecAbortError):
        # What goes wrong while connecting comes wrapped: a wrong password as a connection that failed. In a
        # transaction it is the other way round: what was refused comes first, and that EXEC was aborted for it.
        error = cause
    match error:
        case UnknownService():
            return ConfigError(f"the sentinels {address} know no service {str(error)!r}; mend it in the URL")
        case NoSentinel():
            return Outage(f"no sentinel of {address} answers; are they running and the URL right?")
        case redis_errors.AuthenticationError() if "required" in str(error):
            return _translated_reply("NOAUTH", address)
        case redis_errors.AuthenticationError() | redis_errors.AuthorizationError():
            return ConfigError(f"{address} refuses the user or password; check the user and password in the URL")
        case redis_errors.NoPermissionError():
            return _no_right(address)
        case redis_errors.BusyLoadingError() | redis_errors.ReadOnlyError() | redis_errors.OutOfMemoryError():
            return _not_now(address, _CODES[type(error)])
        case redis_errors.ConnectionError() | redis_errors.TimeoutError() | redis_errors.InvalidResponse() | OSError():
            return _no_answer(error, address)
        case redis_errors.ResponseError():
            # In a pipeline redis-py puts the command, with what users said, before the reply.
            reply = str(error).rpartition(" of pipeline caused error: ")[2].lstrip("('\"")
            return _translated_reply(reply, address)
        case _:
            return Outage(f"{address}: {type(error).__name__}")


def _no_right(address: str) -> ConfigError:
    return ConfigError(
        f"{address}: the user may not do this; `bub-redis doctor` names the rights that it lacks, deploy/users.acl "
        "those needed"
    )


def _no_answer(error: Exception, address: str) -> Outage:
    if isinstance(error, redis_errors.InvalidResponse):
        return Outage(f"what answers at {address} is no Redis; check host and port of the URL")
    return Outage(f"no answer from {address} ({_reason(error)}); {_remedy(error, address)}")


def _not_now(address: str, code: str) -> Outage:
    cause, remedy = _TEMPORARY[code]
    if code == "READONLY" and "-sentinel:" in address:
        cause, remedy = "the sentinels named a server that is a replica by now", "try again in a while"
    return Outage(f"{address} cannot serve now ({cause}); {remedy}")


def _remedy(error: Exception, address: str) -> str:
    if isinstance(_cause(error), SSLCertVerificationError):
        return (
            "name the host that the certificate is for, or the authority that signed it: "
            "rediss://host:port/0?ssl_ca_certs=/path/to/ca.crt"
        )
    if address.startswith("rediss"):
        return "is the server running, with TLS at this port, and the URL right?"
    return "is the server running and the URL right?"


def _translated_reply(reply: str, address: str) -> BubError:
    code = reply.partition(" ")[0]
    if any(words in reply for words in _NO_RIGHT):
        return _no_right(address)
    if code in _TEMPORARY:
        return _not_now(address, code)
    if code == "CROSSSLOT":
        return not_for_a_queue(address)
    if code == "Invalid":
        return TapeBlocked(f"an id kept at {address} is none; see `bub-redis tape repair`")
    if code == "WRONGTYPE":
        return TapeBlocked(f"a key at {address} is of another type; see `bub-redis tape repair`")
    if code == "NOAUTH":
        return ConfigError(f"{address} wants a password; put it into the URL: redis://:password@host:port/0")
    if code == "SELECT":
        return ConfigError(f"{address} is a cluster, which has only one database; end the URL in /0")
    if code == "DB":
        return ConfigError(f"{address} has no database of that number; end the URL in another one, such as /0")
    return ServerUnfit(f"{address} refused a command ({code})")


def not_for_a_queue(address: str) -> ConfigError:
    """The error for a cluster where turns are to be queued."""
    return ConfigError(
        f"{address} is a cluster, and turns are queued on one primary: name one in BUB_REDIS_URL; "
        "BUB_TAPE_URL may name the cluster"
    )


def _cause(error: Exception) -> BaseException | None:
    # redis-py only tells the text of what went wrong while it connected.
    return error if isinstance(error, OSError) else error.__context__


def _reason(error: Exception) -> str:
    if isinstance(error, redis_errors.TimeoutError | TimeoutError):
        return "timed out"
    match cause := _cause(error):
        case SSLCertVerificationError():
            return f"TLS failed: {cause.verify_message.rstrip('.')}"
        case SSLError():
            return f"TLS failed: {cause.reason}"
        case gaierror():
            return "its host name cannot be resolved"
        case FileNotFoundError():
            return "there is no such socket"
        case OSError(errno=int(number)) if number > 0:
            return os.strerror(number).lower()
        case OSError():
            return "connection refused" if "111" in str(cause) else cause.strerror or type(cause).__name__
        case _:
            return "connection refused" if "refused" in str(error) else "connection failed"
