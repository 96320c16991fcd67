"""Where a key is kept: on the server that a URL names, or on one of the primaries of a cluster, by its slot.

Whether it is a cluster is asked once, behind the first commands that are sent. A node that is asked for another one's
slot answers MOVED and does nothing; then, and when a node does not answer any more, the map of slots is read again.
The protocol: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bub_redis.storage.connection import Command, Pool

_REDIRECTION = re.compile(r"(?P<kind>MOVED|ASK) (?P<slot>\d+) (?P<host>.*):(?P<port>\d+)")
_MOST_REDIRECTIONS = 5
_MAP: Command = ("CLUSTER", "SLOTS")
NO_ANSWER = (RedisConnectionError, RedisTimeoutError, OSError)
_WITHOUT_KEY = frozenset({"MULTI", "EXEC", "WAIT", "TIME", "PING", "INFO", "SCAN", "CLIENT", "CLUSTER"})


class Nodes:
    """The nodes behind one URL, each with a pool of connections."""

    def __init__(self, seed: Pool) -> None:
        self.seed = seed
        """The node that the URL names: the only one, until it says otherwise."""
        self._pools: dict[tuple[str, int], Pool] = {}
        self._owners: dict[int, Pool] = {}
        """Slot → the node that serves it; empty on a single server."""
        self._is_told = False
        self._learning = asyncio.Lock()

    def of(self, commands: Iterable[Command]) -> Pool:
        """The node that serves the first key of `commands`, as far as is known."""
        if not self._owners:
            return self.seed
        slot = next((slot_of(key) for command in commands if (key := _key_of(command)) is not None), -1)
        return self._owners.get(slot, self.seed)

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands on keys of one slot in one piece; what was answered to each, errors among them.

        A command without a key goes where the others go. All are sent again where the connection breaks or another node
        serves the slot now. Raises redis-py's ConnectionError and TimeoutError.
        """
        node, is_importing = self.of(commands), False
        replies: list[Any] = []
        failure: Exception | None = None
        for _ in range(_MOST_REDIRECTIONS):
            try:
                replies = await (_ask_importing(node, commands) if is_importing else self._send(node, commands))
                failure = None
            except NO_ANSWER as error:
                if not await self._replaced(node, commands):
                    raise
                node, is_importing, failure = self.of(commands), False, error
                continue
            found = next(filter(None, map(redirection, replies)), None)
            if found is None:
                break
            there = self._at(found["host"] or node.host, int(found["port"]))
            is_importing = found["kind"] == "ASK"
            if not is_importing:
                async with self._learning:
                    if self.of(commands) is not there:
                        await self._read_map([node])
                        self._owners[int(found["slot"])] = there
            node = there
        if failure is not None:
            raise failure
        return replies

    async def ask_each(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands that have nothing to do with each other, in one piece to each node; the replies in order.

        Where a node does not answer, its error stands in place of its replies.
        """
        replies: dict[int, Any] = {}
        left = list(range(len(commands)))
        while left:
            replies |= await self._ask_nodes({place: commands[place] for place in left})
            left = [place for place in left if self._is_open(replies[place])]
            if left:
                # One by itself: it brings the map up to date for the others, or there is no answer to any of them.
                first = left.pop(0)
                silent = self.of([commands[first]])
                try:
                    (replies[first],) = await self.ask([commands[first]])
                except NO_ANSWER:
                    left = [place for place in left if self.of([commands[place]]) is not silent]
        return [replies[place] for place in range(len(commands))]

    async def _ask_nodes(self, commands: Mapping[int, Command]) -> dict[int, Any]:
        """Try each node once, for commands by their places; the replies by the same."""
        parts: dict[Pool, list[int]] = {}
        for place, command in commands.items():
            parts.setdefault(self.of([command]), []).append(place)
        answers = await asyncio.gather(
            *(self._send(node, [commands[place] for place in places]) for node, places in parts.items()),
            return_exceptions=True,
        )
        replies: dict[int, Any] = {}
        for places, answer in zip(parts.values(), answers, strict=True):
            if isinstance(answer, NO_ANSWER):
                replies |= dict.fromkeys(places, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                replies |= zip(places, answer, strict=True)
        return replies

    def _is_open(self, reply: Any) -> bool:
        """Whether another node may have the answer."""
        return redirection(reply) is not None or (bool(self._owners) and isinstance(reply, NO_ANSWER))

    async def _send(self, node: Pool, commands: Sequence[Command]) -> list[Any]:
        if self._is_told:
            return await node.ask(commands)
        *replies, told = await node.ask([*commands, _MAP])
        self._is_told = True
        await self._take_map(node, told)
        return replies

    async def _replaced(self, node: Pool, commands: Sequence[Command]) -> bool:
        """Whether another node serves what this one, which does not answer, was asked for."""
        if not self._owners:
            return False
        async with self._learning:
            if self.of(commands) is node:
                await self._read_map(other for other in (*self._pools.values(), self.seed) if other is not node)
        return self.of(commands) is not node

    async def _read_map(self, nodes: Iterable[Pool]) -> None:
        """Learn from the first of the nodes that tells it which one serves which slot; without one nothing changes."""
        for node in tuple(nodes):
            try:
                (told,) = await node.ask([_MAP])
            except NO_ANSWER:
                continue
            if await self._take_map(node, told):
                return

    async def _take_map(self, node: Pool, told: Any) -> bool:
        """Take in what a node told; False if it told none: it is no cluster, or its user may not ask."""
        if not isinstance(told, list):
            return False
        self._owners = {
            slot: self._at((host or b"").decode() or node.host, port)
            for first, last, (host, port, *_), *_ in told
            for slot in range(first, last + 1)
        }
        await self._forget_others()
        return bool(told)

    async def _forget_others(self) -> None:
        """Let go of nodes that serve nothing any more: in some places each restart gives a node another address."""
        serving = set(self._owners.values())
        for address, pool in list(self._pools.items()):
            if pool not in serving:
                del self._pools[address]
                await pool.disconnect(inuse_connections=False)

    def _at(self, host: str, port: int) -> Pool:
        if (host, port) not in self._pools:
            self._pools[host, port] = self.seed.beside(host, port)
        return self._pools[host, port]

    async def addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports of the primaries of a cluster, in order. Raises what `ask` does."""
        async with self._learning:
            await self._read_map([self.seed, *self._pools.values()])
        return sorted(address for address, pool in self._pools.items() if pool in set(self._owners.values()))

    async def aclose(self) -> None:
        """Close all connections; may be repeated."""
        await asyncio.gather(*(pool.disconnect() for pool in (self.seed, *self._pools.values())))


def slot_of(key: str | bytes) -> int:
    """The slot of a key, by its hash tag if it has one."""
    return key_slot(key.encode() if isinstance(key, str) else key)


def redirection(reply: Any) -> re.Match[str] | None:
    """Where to ask instead, if that is the reply: nothing was done then."""
    return _REDIRECTION.match(str(reply)) if isinstance(reply, ResponseError) else None


def _key_of(command: Command) -> str | bytes | None:
    """The first key of a command; None for one without."""
    match command:
        case ("EVALSHA" | "EVAL", _, count, *rest):
            key = rest[0] if count else None
        case ("XREAD", *rest):
            key = rest[rest.index("STREAMS") + 1]
        case ("XINFO", _, key):
            pass
        case (name, *_) if name in _WITHOUT_KEY:
            key = None
        case (_, key, *_):
            pass
        case _:
            key = None
    return key if isinstance(key, str | bytes) else None


async def _ask_importing(node: Pool, commands: Sequence[Command]) -> list[Any]:
    """Ask a node for keys of a slot that is on its way to it, which it must be told each time, but not within MULTI."""
    sent: list[Command] = []
    places: list[int] = []
    within = False
    for command in commands:
        if not within:
            sent.append(("ASKING",))
        places.append(len(sent))
        sent.append(command)
        within = command[0] == "MULTI" or (within and command[0] != "EXEC")
    replies = await node.ask(sent)
    return [replies[place] for place in places]
