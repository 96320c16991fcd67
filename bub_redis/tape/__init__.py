"""The tape: entries, queries, forks, receipts and views. No Redis here, and nothing above this floor is known."""

from bub_redis.tape.context import LAST_ANCHOR, TapeContext, default_tape_context
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.memory import InMemoryTapeStore
from bub_redis.tape.names import session_tape_name
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.receipt import Receipt
from bub_redis.tape.store import AsyncTapeStore, TapeStore
from bub_redis.tape.tape import Tape

__all__ = [
    "LAST_ANCHOR",
    "AsyncTapeStore",
    "InMemoryTapeStore",
    "Receipt",
    "Tape",
    "TapeContext",
    "TapeEntry",
    "TapeQuery",
    "TapeStore",
    "default_tape_context",
    "session_tape_name",
]
