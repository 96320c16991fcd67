"""Agent turns on Redis Streams: what a turn did is on the tape once, whole and in order, or not at all.

A web backend needs `TurnClient`; an application without workers needs `Agent`; everything else hangs on these two.
"""

from bub_redis import errors
from bub_redis.agent import Agent, TapeRecorder, ToolContext, events, tool
from bub_redis.storage import RedisTapeStore
from bub_redis.tape import (
    LAST_ANCHOR,
    AsyncTapeStore,
    InMemoryTapeStore,
    Tape,
    TapeContext,
    TapeEntry,
    TapeQuery,
    TapeStore,
    default_tape_context,
    session_tape_name,
)
from bub_redis.turns import TurnClient

__all__ = [
    "LAST_ANCHOR",
    "Agent",
    "AsyncTapeStore",
    "InMemoryTapeStore",
    "RedisTapeStore",
    "Tape",
    "TapeContext",
    "TapeEntry",
    "TapeQuery",
    "TapeRecorder",
    "TapeStore",
    "ToolContext",
    "TurnClient",
    "default_tape_context",
    "errors",
    "events",
    "session_tape_name",
    "tool",
]
