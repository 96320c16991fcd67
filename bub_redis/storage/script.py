"""Lua scripts: one file per operation, loaded once, sent by digest.

A script's header lists its KEYS and ARGV in order; `-- include NAME` puts `NAME.lua` of the same folder in its place.
JSON passes through scripts as bytes: none of them parses or builds a payload.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

_INCLUDE = re.compile(r"^-- include (\w+)\n", re.MULTILINE)

Argument = str | bytes | int


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

    async def run(self, client: Redis, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Run on `client` and return the reply. A server that does not know the script is sent its text."""
        try:
            return await client.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await client.execute_command("EVAL", self.text, len(keys), *keys, *args)

    async def run_before(
        self, client: Redis, keys: Sequence[str], args: Sequence[Argument], reads: Sequence[Sequence[Argument]]
    ) -> list[Any]:
        """Run, and then commands that only read, in one round trip: the reply, then theirs, errors among them."""
        if not reads:
            return [await self.run(client, keys, args)]
        try:
            return await self._before(client, "EVALSHA", self.sha, keys, args, reads)
        except NoScriptError:
            return await self._before(client, "EVAL", self.text, keys, args, reads)

    async def run_each(self, client: Redis, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]) -> list[Any]:
        """Run once for each keys and arguments of `calls`, in one round trip; the replies in order."""
        async with client.pipeline(transaction=False) as pipe:
            for keys, args in calls:
                pipe.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)
            replies = await pipe.execute(raise_on_error=False)
        return [
            await self.run(client, *call) if isinstance(reply, NoScriptError) else _raised(reply)
            for call, reply in zip(calls, replies, strict=True)
        ]

    async def run_in_transaction(self, client: Redis, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """The same between MULTI and EXEC, in one round trip."""
        try:
            return await self._transaction(client, "EVALSHA", self.sha, keys, args)
        except NoScriptError:
            return await self._transaction(client, "EVAL", self.text, keys, args)

    async def run_replicated(
        self, client: Redis, keys: Sequence[str], args: Sequence[Argument], replicas: "Replicas"
    ) -> Any:
        """The same in a transaction, then WAIT on the same connection, in one round trip.

        Raises NotReplicated if fewer replicas than asked for have it in time; on this server it is done then.
        """
        try:
            return await self._replicated(client, "EVALSHA", self.sha, keys, args, replicas)
        except NoScriptError:
            return await self._replicated(client, "EVAL", self.text, keys, args, replicas)

    async def _before(
        self,
        client: Redis,
        command: str,
        script: str,
        keys: Sequence[str],
        args: Sequence[Argument],
        reads: Sequence[Sequence[Argument]],
    ) -> list[Any]:
        async with client.pipeline(transaction=False) as pipe:
            pipe.execute_command(command, script, len(keys), *keys, *args)
            for read in reads:
                pipe.execute_command(*read)
            reply, *read_replies = await pipe.execute(raise_on_error=False)
        return [_raised(reply), *read_replies]

    async def _transaction(
        self, client: Redis, command: str, script: str, keys: Sequence[str], args: Sequence[Argument]
    ) -> Any:
        async with client.pipeline(transaction=True) as pipe:
            pipe.execute_command(command, script, len(keys), *keys, *args)
            (reply,) = await pipe.execute(raise_on_error=False)
        return _raised(reply)

    async def _replicated(
        self,
        client: Redis,
        command: str,
        script: str,
        keys: Sequence[str],
        args: Sequence[Argument],
        replicas: "Replicas",
    ) -> Any:
        # redis-py's own transaction gives its connection back before anything can wait on it.
        async with client.pipeline(transaction=False) as pipe:
            pipe.execute_command("MULTI")
            pipe.execute_command(command, script, len(keys), *keys, *args)
            pipe.execute_command("EXEC")
            pipe.execute_command("WAIT", replicas.count, int(replicas.timeout_s * 1000))
            *_, replies, reached = await pipe.execute(raise_on_error=False)
        (reply,) = _raised(replies)
        _raised(reply)
        if _raised(reached) < replicas.count:
            raise NotReplicated(reached)
        return reply


@dataclass(frozen=True)
class Replicas:
    """How many replicas must have a commit before it is acknowledged, and how long to wait for them."""

    count: int
    timeout_s: float


class NotReplicated(Exception):
    """Fewer replicas than asked for have what was written; `args[0]` says how many."""


def _raised(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply
