"""What tests of an agent need, a user's or ours: a model that plays a script, a real server to throw away.

`ScriptedModel` is a Republic model, `EmbeddedServer` a Valkey or Redis process; neither needs a port or
a network. Nothing here imports a Redis client.
"""

from bub_redis.testing.model import ModelRequest, Script, ScriptedModel, ScriptExhausted
from bub_redis.testing.replies import Reply, call, calls, cut, fail, garbage, say, stall
from bub_redis.testing.server import EmbeddedServer
from bub_redis.testing.waiting import wait_until

__all__ = [
    "EmbeddedServer",
    "ModelRequest",
    "Reply",
    "Script",
    "ScriptExhausted",
    "ScriptedModel",
    "call",
    "calls",
    "cut",
    "fail",
    "garbage",
    "say",
    "stall",
    "wait_until",
]
