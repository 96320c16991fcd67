"""Agent turns on Redis Streams: what a turn did is on the tape once, whole and in order, or not at all.

A web backend needs `TurnClient`; an application without workers needs `Agent`; everything else hangs on these two.
A name is imported when it is first asked for: `import bub_redis` costs nothing, and the command line starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bub_redis import errors
    from bub_redis.agent import Agent, TapeRecorder, ToolContext, events, tool
    from bub_redis.storage import RedisTapeStore
    from bub_redis.tape import (
        LAST_ANCHOR,
        AsyncTapeStore,
        FileTapeStore,
        InMemoryTapeStore,
        SpillStore,
        Tape,
        TapeContext,
        TapeEntry,
        TapeQuery,
        TapeSidecar,
        TapeStore,
        default_tape_context,
        openai_messages,
        session_tape_name,
    )
    from bub_redis.turns import TurnClient

__all__ = [
    "LAST_ANCHOR",
    "Agent",
    "AsyncTapeStore",
    "FileTapeStore",
    "InMemoryTapeStore",
    "RedisTapeStore",
    "SpillStore",
    "Tape",
    "TapeContext",
    "TapeEntry",
    "TapeQuery",
    "TapeRecorder",
    "TapeSidecar",
    "TapeStore",
    "ToolContext",
    "TurnClient",
    "default_tape_context",
    "errors",
    "events",
    "openai_messages",
    "session_tape_name",
    "tool",
]

_ROOMS = {
    "bub_redis.agent": ("Agent", "TapeRecorder", "ToolContext", "events", "tool"),
    "bub_redis.storage": ("RedisTapeStore",),
    "bub_redis.tape": (
        "LAST_ANCHOR",
        "AsyncTapeStore",
        "FileTapeStore",
        "InMemoryTapeStore",
        "SpillStore",
        "Tape",
        "TapeContext",
        "TapeEntry",
        "TapeQuery",
        "TapeSidecar",
        "TapeStore",
        "default_tape_context",
        "openai_messages",
        "session_tape_name",
    ),
    "bub_redis.turns": ("TurnClient",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("bub_redis.errors")
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_ROOM_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
