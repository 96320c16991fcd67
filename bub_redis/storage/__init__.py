"""Tapes on Redis: clients, keys, scripts, the commit and the session lock. Nothing above this floor is known here."""

from bub_redis.storage.client import RedisServer
from bub_redis.storage.store import RedisTapeStore

__all__ = ["RedisServer", "RedisTapeStore"]
