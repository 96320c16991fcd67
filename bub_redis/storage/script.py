"""Lua scripts: one file per operation, loaded once, sent by digest.

A script's header lists its KEYS and ARGV in order; `-- include NAME` puts `NAME.lua` of the same folder in its place.
JSON passes through scripts as bytes: none of them parses or builds a payload.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from bub_redis.storage.client import RedisServer, raised, transacted
from bub_redis.storage.connection import Argument, Command

Keys = Sequence[str]

_INCLUDE = re.compile(r"^-- include (\w+)\n", re.MULTILINE)


def _load(package: str, name: str) -> str:
    folder = files(package) / "scripts"
    text = (folder / f"{name}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: (folder / f"{match[1]}.lua").read_text(encoding="utf-8"), text)


class Script:
    """One script of `package`, by the name of its file."""

    def __init__(self, package: str, name: str) -> None:
        self.name = name
        self.text = _load(package, name)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, server: RedisServer, keys: Keys, args: Sequence[Argument]) -> Any:
        """Run on `server` and return the reply. A server that does not know the script is sent its text."""
        return (await self.run_before(server, keys, args, ()))[0]

    async def run_before(
        self, server: RedisServer, keys: Keys, args: Sequence[Argument], reads: Sequence[Command]
    ) -> list[Any]:
        """Run, and then commands that only read, in one round trip: the reply, then theirs, errors among them."""
        return await self._known(keys, args, lambda call: server.ask(call, *reads))

    async def run_each(self, server: RedisServer, calls: Sequence[tuple[Keys, Sequence[Argument]]]) -> list[Any]:
        """Run once for each keys and arguments of `calls`, in one round trip; the replies in order.

        What can be run has been when it raises for another one.
        """
        replies = await server.ask_each(*(self._by_digest(*call) for call in calls))
        for place, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                replies[place] = await self.run(server, *calls[place])
        return [raised(reply) for reply in replies]

    async def run_in_transaction(self, server: RedisServer, keys: Keys, args: Sequence[Argument]) -> Any:
        """The same as `run` between MULTI and EXEC, in one round trip."""
        return (await self._known(keys, args, server.transact))[0]

    async def run_replicated(
        self, server: RedisServer, keys: Keys, args: Sequence[Argument], replicas: "Replicas"
    ) -> Any:
        """The same in a transaction, then WAIT on the same connection, in one round trip.

        Raises NotReplicated if fewer replicas than asked for have it in time; on this server it is done then.
        """

        async def transact(call: Command) -> list[Any]:
            wait = ("WAIT", replicas.count, int(replicas.timeout_s * 1000))
            *queued, replies, reached = await server.ask(("MULTI",), call, ("EXEC",), wait)
            return [*transacted(queued, replies), reached]

        reply, reached = await self._known(keys, args, transact)
        if raised(reached) < replicas.count:
            raise NotReplicated(reached)
        return reply

    async def _known(
        self, keys: Keys, args: Sequence[Argument], send: Callable[[Command], Awaitable[list[Any]]]
    ) -> list[Any]:
        """What `send` answers to the call, the script's own reply first."""
        with suppress(NoScriptError):
            return _first_raised(await send(self._by_digest(keys, args)))
        return _first_raised(await send(("EVAL", self.text, len(keys), *keys, *args)))

    def _by_digest(self, keys: Keys, args: Sequence[Argument]) -> Command:
        return ("EVALSHA", self.sha, len(keys), *keys, *args)


def _first_raised(replies: list[Any]) -> list[Any]:
    raised(replies[0])
    return replies


@dataclass(frozen=True)
class Replicas:
    """How many replicas must have a commit before it is acknowledged, and how long to wait for them."""

    count: int
    timeout_s: float


class NotReplicated(Exception):
    """Fewer replicas than asked for have what was written; `args[0]` says how many."""
