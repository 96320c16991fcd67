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
_MOST_TRIES = 8
_REPEAT_PAUSE_S = 0.1
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

    @property
    def is_cluster(self) -> bool:
        """Whether a node has told which one serves which slot."""
        return bool(self._owners)

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands on keys of one slot in one piece; what was answered to each, errors among them.

        A command without a key goes where the others go. All are sent again where the connection breaks or another node
        serves the slot now. Raises redis-py's ConnectionError and TimeoutError.
        """
        node, is_importing = self.of(commands), False
        repeats = self.seed.repeats
        replies: list[Any] = []
        for tries_left in reversed(range(_MOST_TRIES)):
            try:
                replies = await (_ask_importing(node, commands) if is_importing else self._send(node, commands))
            except NO_ANSWER:
                if not (self._owners and tries_left):
                    raise
                if not await self._replaced(node, commands):
                    if not repeats:
                        raise
                    repeats -= 1
                    await asyncio.sleep(_REPEAT_PAUSE_S)
                node, is_importing = self.of(commands), False
                continue
            found = next(filter(None, map(redirection, replies)), None)
            if found is not None:
                node, is_importing = await self._there(node, commands, found), found["kind"] == "ASK"
            elif any(map(_is_down, replies)) and await self._replaced(node, commands):
                node, is_importing = self.of(commands), False
            else:
                return replies
        return replies

    async def _there(self, node: Pool, commands: Sequence[Command], found: re.Match[str]) -> Pool:
        """The node that a redirection names; where the slot has moved, the map is read again too."""
        there = self._at(_named(found["host"]) or node.host, int(found["port"]))
        if found["kind"] == "MOVED":
            async with self._learning:
                if self.of(commands) is not there:
                    await self._read_map([node])
                    self._owners[int(found["slot"])] = there
        return there

    async def ask_each(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands that have nothing to do with each other, in one piece to each node; the replies in order.

        Where a node does not answer, its error stands in place of its replies.
        """
        replies = await self._ask_nodes(dict(enumerate(commands)))
        return [replies[place] for place in range(len(commands))]

    async def _ask_nodes(self, commands: Mapping[int, Command], *, again: bool = True) -> dict[int, Any]:
        """Ask all nodes at once, for commands by their places; the replies by the same."""
        parts: dict[Pool, dict[int, Command]] = {}
        for place, command in commands.items():
            parts.setdefault(self.of([command]), {})[place] = command
        answers = await asyncio.gather(*(self._ask_node(*part, again=again) for part in parts.items()))
        return {place: reply for answer in answers for place, reply in answer.items()}

    async def _ask_node(self, node: Pool, commands: Mapping[int, Command], *, again: bool) -> dict[int, Any]:
        """Ask one node, and then others for what it does not serve any more."""
        replies: dict[int, Any] = {}
        try:
            replies |= zip(commands, await self._send(node, [*commands.values()]), strict=True)
        except NO_ANSWER as error:
            replies |= dict.fromkeys(commands, error)
        left = {place: commands[place] for place, reply in replies.items() if self._is_open(reply)}
        if not left:
            return replies
        # One by itself: it brings the map up to date for the others, or there is no answer to any of them.
        first = next(iter(left))
        replies |= await self._ask_alone({first: left.pop(first)})
        if isinstance(replies[first], NO_ANSWER):
            left = {place: command for place, command in left.items() if self.of([command]) is not node}
        return replies | await (self._ask_nodes(left, again=False) if again else self._ask_alone(left))

    async def _ask_alone(self, commands: Mapping[int, Command]) -> dict[int, Any]:
        """Ask for each by itself, wherever that leads."""
        answers = await asyncio.gather(*(self.ask([command]) for command in commands.values()), return_exceptions=True)
        return {
            place: answer if isinstance(answer, BaseException) else answer[0]
            for place, answer in zip(commands, answers, strict=True)
        }

    def _is_open(self, reply: Any) -> bool:
        """Whether another node may have the answer."""
        if redirection(reply):
            return True
        return self.is_cluster and (isinstance(reply, NO_ANSWER) or _is_down(reply))

    async def _send(self, node: Pool, commands: Sequence[Command]) -> list[Any]:
        if self._is_told:
            # On a cluster another node may have taken over: that is looked at before anything is repeated.
            return await (node.ask_once(commands) if self._owners else node.ask(commands))
        # For the others that are sent meanwhile: one map is enough for all of them.
        self._is_told = True
        try:
            *replies, told = await node.ask([*commands, _MAP])
        except BaseException:
            self._is_told = False
            raise
        await self._take_map(node, told)
        return replies

    async def _replaced(self, node: Pool, commands: Sequence[Command]) -> bool:
        """Whether another node serves what this one, which gives no answer, was asked for."""
        if not self._owners:
            return False
        async with self._learning:
            if self.of(commands) is node:
                await self._read_map(other for other in (*self._pools.values(), self.seed) if other is not node)
        return self.of(commands) is not node

    async def _read_map(self, nodes: Iterable[Pool]) -> None:
        """Learn from the first of the nodes that tells it which one serves which slot; without one nothing changes."""
        asked = [asyncio.create_task(_told_by(node)) for node in dict.fromkeys(nodes)]
        try:
            for answer in asyncio.as_completed(asked):
                if await self._take_map(*await answer):
                    return
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _take_map(self, node: Pool, told: Any) -> bool:
        """Take in what a node told; whether it told any: not one that is alone, nor to a user without the right."""
        if not isinstance(told, list) or not told:
            return False
        self._owners = {
            slot: owner
            for first, last, primary, *_ in told
            for owner in [self._at(_endpoint(primary) or node.host, primary[1])]
            for slot in range(first, last + 1)
        }
        await self._forget_others()
        return True

    async def _forget_others(self) -> None:
        """Let go of nodes that serve nothing any more: in some places each restart gives a node another address."""
        serving = set(self._owners.values())
        for address, pool in list(self._pools.items()):
            if pool not in serving:
                del self._pools[address]
                await pool.retire()

    def _at(self, host: str, port: int) -> Pool:
        if (host, port) not in self._pools:
            self._pools[host, port] = self.seed.beside(host, port)
        return self._pools[host, port]

    async def addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports of the primaries of a cluster, in order; none where the node that is asked knows of none.

        Raises what `ask` does, and a refusal to tell them.
        """
        async with self._learning:
            await self._read_map([*self._pools.values(), self.seed])
        if not self._owners:
            (told,) = await self.seed.ask([_MAP])
            if isinstance(told, Exception):
                raise told
        serving = set(self._owners.values())
        return sorted(address for address, pool in self._pools.items() if pool in serving)

    async def aclose(self) -> None:
        """Close all connections; may be repeated."""
        await asyncio.gather(*(pool.disconnect() for pool in (self.seed, *self._pools.values())))


def slot_of(key: str | bytes) -> int:
    """The slot of a key, by its hash tag if it has one."""
    return key_slot(key.encode() if isinstance(key, str) else key)


def redirection(reply: Any) -> re.Match[str] | None:
    """Where to ask instead, if that is the reply: nothing was done then."""
    return _REDIRECTION.match(str(reply)) if isinstance(reply, ResponseError) else None


def leads_nowhere(reply: Any) -> bool:
    """Whether a connection is of no use for what was asked: by a redirection, or since its server is a replica now."""
    return redirection(reply) is not None or _is_refused_as(reply, "UNBLOCKED")


def _is_refused_as(reply: Any, code: str) -> bool:
    return isinstance(reply, ResponseError) and str(reply).startswith(code)


def _is_down(reply: Any) -> bool:
    """Whether the node says that its cluster is not whole: it may be the only one that sees it so."""
    return _is_refused_as(reply, "CLUSTERDOWN")


def _named(host: bytes | str | None) -> str:
    """A host as a node tells it; empty for one that it does not know: the address where it was asked is right then."""
    text = host.decode() if isinstance(host, bytes) else host or ""
    return "" if text == "?" else text


def _endpoint(primary: Sequence[Any]) -> str:
    """The host of a node in the map, or the address beside it where its name is not known; empty for neither."""
    beside = primary[3] if len(primary) > 3 else []
    return _named(primary[0]) or _named(dict(zip(beside[::2], beside[1::2], strict=False)).get(b"ip"))


async def _told_by(node: Pool) -> tuple[Pool, Any]:
    try:
        (told,) = await node.ask_once([_MAP])
    except NO_ANSWER:
        return node, None
    return node, told


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
