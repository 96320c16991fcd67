"""What a script's refusal means. Scripts refuse by a code in the reply, before anything is written."""

from bub_redis.errors import BubError, ConfigError, Conflict, Fenced, Outage, SessionBusy, TapeBlocked

_UNFIT = frozenset({"MISMATCH", "ERR", "GENERATION", "WRONGTYPE"})


def is_unfit(code: str) -> bool:
    """Whether the refusal is about the tape itself, and not about the server, or about who may write."""
    return code in _UNFIT


def busy(tape: str, holder: bytes) -> SessionBusy:
    """The error for a session that somebody else holds."""
    return SessionBusy(f"session {tape!r} is held by {holder.decode(errors='replace')!r}; try again later")


def refused(tape: str, code: str) -> BubError:
    """The error for a refusal: Fenced, Conflict, TapeBlocked, ConfigError or Outage."""
    match code:
        case "FENCED":
            return Fenced(f"session {tape!r} was granted to another attempt since; nothing was written")
        case "GENERATION":
            return Conflict(f"tape {tape!r} was reset meanwhile; nothing was written")
        case "LOST":
            return Conflict(
                f"tape {tape!r} lost what was seen of it: its server went back to an older copy; nothing was written"
            )
        case "MISMATCH" | "ERR":
            return TapeBlocked(
                f"the stream of tape {tape!r} was changed by others, or lost something, so nothing more is written to "
                "it; see `bub-redis tape repair`"
            )
        case "NOPERM":
            return ConfigError(f"the user may not write tape {tape!r}; see `bub-redis doctor` for the rights needed")
        case "WRONGTYPE":
            return TapeBlocked(f"a key of tape {tape!r} is of another type; see `bub-redis tape repair`")
        case _:
            return Outage(f"the server of tape {tape!r} cannot write now ({code}); nothing was written")
