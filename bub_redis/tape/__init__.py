"""The tape: entries, queries, forks, receipts and views. No Redis here, and nothing above this floor is known."""

from bub_redis.tape.adapter import adapted
from bub_redis.tape.context import LAST_ANCHOR, TapeContext, default_tape_context, openai_messages
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.file import FileTapeStore
from bub_redis.tape.info import AnchorSummary, TapeInfo
from bub_redis.tape.memory import InMemoryTapeStore
from bub_redis.tape.names import session_tape_name
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.receipt import Receipt
from bub_redis.tape.sidecar import TapeSidecar
from bub_redis.tape.spill import SpillStore
from bub_redis.tape.store import AsyncTapeStore, TapeStore
from bub_redis.tape.tape import Tape

__all__ = [
    "LAST_ANCHOR",
    "AnchorSummary",
    "AsyncTapeStore",
    "FileTapeStore",
    "InMemoryTapeStore",
    "Receipt",
    "SpillStore",
    "Tape",
    "TapeContext",
    "TapeEntry",
    "TapeInfo",
    "TapeQuery",
    "TapeSidecar",
    "TapeStore",
    "adapted",
    "default_tape_context",
    "openai_messages",
    "session_tape_name",
]
