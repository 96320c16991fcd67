"""Reading what may be large step by step: the fields of a hash, and the names of keys."""

from collections.abc import AsyncIterator

from bub_redis.storage.client import RedisServer, raised

_AT_ONCE = 1000


async def fields_of(server: RedisServer, key: str) -> AsyncIterator[list[tuple[bytes, bytes]]]:
    """The fields of a hash and their values, page by page; one that changes meanwhile may come twice. Raises Outage."""
    cursor = b"0"
    while True:
        with server.outages():
            cursor, flat = await server.reply("HSCAN", key, cursor, "COUNT", _AT_ONCE)
        yield list(zip(flat[::2], flat[1::2], strict=True))
        if cursor == b"0":
            return


async def keys_like(server: RedisServer, pattern: str, *, beside: str) -> list[str]:
    """The keys of a pattern on the node that has the key `beside`; goes over all keys there. Raises Outage."""
    found: set[bytes] = set()
    cursor = b"0"
    while True:
        with server.outages():
            # By itself SCAN names no key, and any node would answer it.
            _, (cursor, page) = map(
                raised, await server.ask(("EXISTS", beside), ("SCAN", cursor, "MATCH", pattern, "COUNT", _AT_ONCE))
            )
        found.update(page)
        if cursor == b"0":
            return sorted(key.decode(errors="replace") for key in found)
