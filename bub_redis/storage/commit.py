"""Writing to a tape: batches, the bootstrap, and the merge of a fork, each one script and one commit point."""

import json
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import structlog

from bub_redis.errors import Conflict, Outage
from bub_redis.storage.client import RedisServer
from bub_redis.storage.connection import Argument
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.lock import Committed
from bub_redis.storage.refusal import is_unfit, refused
from bub_redis.storage.script import NotReplicated, Replicas, Script
from bub_redis.tape.block import Block
from bub_redis.tape.entry import StoredEntry, encode_json
from bub_redis.tape.receipt import Receipt
from bub_redis.tape.store import Commit, Delta, Grant, Head

_APPEND = Script(__package__, "append")
_BOOTSTRAP = Script(__package__, "bootstrap")
_MERGE = Script(__package__, "merge")
_CONFIRM = Script(__package__, "confirm")
_SPILL = Script(__package__, "spill")

_BATCH_MS = 120_000
"""How long a repeat of a batch is known as one, at least. Longer than any client goes on repeating."""

log = structlog.get_logger(__name__)


class LastFrame(NamedTuple):
    """The last frame of a turn, as the merge takes it, which shows it itself: what followers see is on the tape."""

    type: str
    attempt: int
    number: int
    data: bytes
    """JSON; what it repeats of the receipt is brought in line with the one that is committed."""
    ttl_ms: int

    def telling(self, receipt: Receipt) -> "LastFrame":
        """The same frame, for a receipt that was redone since."""
        data = json.loads(self.data) | {"entries": receipt.entries}
        return self._replace(data=encode_json(data, "a finished frame"))


def block_args(block: Block, last: Sequence[StoredEntry] = ()) -> list[Argument]:
    """A block as scripts take it, with what comes behind it.

    Entries by their four fields, the place of the last one that tells token usage (-1 for none), then place and name of
    each anchor.
    """
    args: list[Argument] = [len(block) + len(last)]
    for entry in (*block.entries, *last):
        args.extend(entry)
    args += [block.usage, len(block.anchors)]
    for place, name in block.anchors:
        args += [place, encoded_anchor(name)]
    return args


def tape_args(namespace: str, delta: Delta, last: Sequence[StoredEntry] = ()) -> list[Argument]:
    """One of the tapes that a script writes: its name, what its writer saw of it, whether it is reset, its block."""
    opening = -1 if delta.opening is None else delta.opening
    name = TapeKeys(namespace, delta.tape).sidecar
    return [name, delta.head.generation, opening, delta.head.last_id, *block_args(delta.block, last)]


def tape_keys(namespace: str, tapes: Sequence[str]) -> list[str]:
    """The keys of several tapes in the order in which scripts take them."""
    return [key for keys in (TapeKeys(namespace, tape) for tape in tapes) for key in keys.written]


def encoded_anchor(name: str) -> bytes:
    """An anchor's name as member and field of its indexes: any text, also empty, also half a character."""
    return name.encode("utf-8", "surrogatepass")


class Writer:
    """Writes to the tapes of one server; merges are acknowledged when `replicas` have them, if given."""

    def __init__(self, server: RedisServer, namespace: str, replicas: Replicas | None = None) -> None:
        self._server = server
        self._namespace = namespace
        self._replicas = replicas

    async def append(self, tape: str, block: Block) -> str:
        """Append a batch, whole, once; return the stream id of its last entry. Raises TapeBlocked, Outage."""
        keys = TapeKeys(self._namespace, tape)
        # The id of the batch makes the client's own repeats harmless after a lost reply (case 144).
        args = [secrets.token_hex(12), _BATCH_MS, keys.prefix, *block_args(block)]
        with self._server.outages():
            verdict, value = await _APPEND.run(self._server, [*keys.written, keys.state, *keys.batches], args)
        if verdict != b"OK":
            raise refused(tape, value.decode())
        return str(value.decode())

    async def bootstrap(self, tape: str, block: Block) -> bool:
        """Append a block if the tape has no anchor yet; whether it did. Raises TapeBlocked, Outage."""
        keys = TapeKeys(self._namespace, tape)
        with self._server.outages():
            verdict, *rest = await _BOOTSTRAP.run(
                self._server, [*keys.written, keys.state], [keys.prefix, *block_args(block)]
            )
        if verdict == b"REFUSED":
            raise refused(tape, rest[0].decode())
        return bool(verdict == b"OK")

    async def append_fenced(self, grant: Grant, tape: str, head: Head, block: Block) -> str:
        """Append to a sidecar under a grant, whole, once; return the stream id of the last entry.

        The client's own repeats are harmless, by the id of the batch; a call that is made again writes again, since
        after an unknown outcome the next batch may be another one. Raises Fenced, Conflict or TapeBlocked with nothing
        written; Outage.
        """
        keys = TapeKeys(self._namespace, tape)
        with self._server.outages():
            verdict, value = await _SPILL.run(
                self._server,
                [*keys.written, keys.state, keys.fence],
                [grant.fence, keys.prefix, head.generation, head.last_id, secrets.token_hex(8), *block_args(block)],
            )
        if verdict != b"OK":
            raise refused(tape, value.decode())
        return str(value.decode())

    async def merge(self, commit: Commit, last_frame: LastFrame | None = None) -> Receipt | Committed:
        """Commit a fork's block and receipt; the receipt as placed, or the mark of an earlier commit.

        A sidecar that cannot take its block is left out, and the main tape says so. May be repeated. Raises Fenced,
        Conflict or TapeBlocked with nothing written, Outage when the outcome is unknown or the server cannot write.
        """
        while True:
            verdict, *rest = await self._send(commit, last_frame)
            match verdict:
                case b"OK":
                    return commit.receipt.placed(rest[0].decode())
                case b"COMMITTED":
                    return Committed.from_mark(rest[0])
                case b"UNFIT" if is_unfit(rest[1].decode()):
                    name, code = (value.decode() for value in rest)
                    sidecar = next(
                        one for one in commit.sidecars if TapeKeys(self._namespace, one.tape).sidecar == name
                    )
                    reason = str(refused(sidecar.tape, code))
                    log.warning("sidecar.left_out", tape=commit.grant.tape, sidecar=name, reason=reason)
                    commit = commit.without(sidecar, reason)
                    last_frame = last_frame and last_frame.telling(commit.receipt)
                case _:
                    raise refused(commit.grant.tape, rest[-1].decode())

    async def _send(self, commit: Commit, last_frame: LastFrame | None) -> list[bytes]:
        grant, receipt = commit.grant, commit.receipt
        keys = TapeKeys(self._namespace, grant.tape)
        frames, journal = keys.frames(grant.holder), keys.journal(grant.holder)
        deltas = [commit.main, *commit.sidecars]
        frame = last_frame or LastFrame("", 0, 0, b"", 0)
        args: list[Argument] = [grant.holder, grant.fence, grant.lock, receipt.digest, receipt.status, receipt.steers]
        args += [*frame, *tape_args(self._namespace, commit.main, [receipt.entry().encode()])]
        for sidecar in commit.sidecars:
            args += tape_args(self._namespace, sidecar)
        used = [keys.state, keys.turns, keys.lock, keys.fence, frames, journal]
        used += tape_keys(self._namespace, [delta.tape for delta in deltas])
        reply: list[bytes] = await self._transacted(_MERGE, used, args)
        return reply

    async def confirm(self, tape: str, holder: str, committed: Committed) -> None:
        """Make sure that as many replicas as asked for have an earlier commit. Raises Outage if they do not yet.

        Raises Conflict if the commit is not there any more.
        """
        if self._replicas is not None:
            there = await self._transacted(_CONFIRM, [TapeKeys(self._namespace, tape).turns], [holder, committed.mark])
            if not there:
                raise Conflict(f"tape {tape!r} lost the commit of {holder!r}: its server went back to an older copy")

    async def _transacted(self, script: Script, keys: list[str], args: list[Argument]) -> Any:
        with self._server.outages():
            if self._replicas is None:
                return await script.run_in_transaction(self._server, keys, args)
            try:
                return await script.run_replicated(self._server, keys, args, self._replicas)
            except NotReplicated as short:
                raise Outage(
                    f"{self._server.address} has the commit, and only {short.args[0]} of {self._replicas.count} "
                    f"replicas had it within {self._replicas.timeout_s:g} s"
                ) from None
