"""Writing to a tape: batches, the bootstrap, and the merge of a fork, each one script and one commit point."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from bub_redis.storage.client import RedisServer
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.lock import Committed
from bub_redis.storage.refusal import refused
from bub_redis.storage.script import Argument, Script
from bub_redis.tape.entry import StoredEntry
from bub_redis.tape.store import Commit

_APPEND = Script(__package__, "append")
_BOOTSTRAP = Script(__package__, "bootstrap")
_MERGE = Script(__package__, "merge")

_BATCH_TTL_MS = 120_000
"""How long a repeat of a batch is known as one. Longer than any client goes on repeating."""


@dataclass(frozen=True)
class Closing:
    """The last frame of a turn, which the merge itself shows: what followers see is on the tape."""

    type: str
    attempt: int
    number: int
    data: bytes
    ttl_ms: int


def block_args(entries: Sequence[StoredEntry], anchors: Sequence[tuple[int, str]]) -> list[Argument]:
    """A block as scripts take it: entries by their four fields, then place and name of each anchor."""
    args: list[Argument] = [len(entries)]
    for entry in entries:
        args.extend(entry)
    args.append(len(anchors))
    for place, name in anchors:
        args += [place, encoded_anchor(name)]
    return args


def encoded_anchor(name: str) -> bytes:
    """An anchor's name as member and field of its indexes: any text, also empty, also half a character."""
    return name.encode("utf-8", "surrogatepass")


class Writer:
    """Writes to the tapes of one server."""

    def __init__(self, server: RedisServer, namespace: str) -> None:
        self._server = server
        self._namespace = namespace

    async def append(self, tape: str, entries: Sequence[StoredEntry], anchors: Sequence[tuple[int, str]]) -> str:
        """Append a batch, whole, once; return the stream id of its last entry. Raises TapeBlocked, Outage."""
        keys = TapeKeys(self._namespace, tape)
        # The key of the batch makes the client's own repeats harmless after a lost reply (case 144).
        written = [keys.tape, keys.anchors, keys.latest, keys.state, keys.batch(secrets.token_hex(12))]
        with self._server.outages():
            verdict, value = await _APPEND.run(
                self._server.commands, written, [_BATCH_TTL_MS, *block_args(entries, anchors)]
            )
        if verdict != b"OK":
            raise refused(tape, value.decode())
        return str(value.decode())

    async def bootstrap(self, tape: str, entries: Sequence[StoredEntry], anchors: Sequence[tuple[int, str]]) -> bool:
        """Append a block if the tape has no anchor yet; whether it did. Raises TapeBlocked, Outage."""
        keys = TapeKeys(self._namespace, tape)
        with self._server.outages():
            verdict, *rest = await _BOOTSTRAP.run(
                self._server.commands,
                [keys.tape, keys.anchors, keys.latest, keys.state],
                block_args(entries, anchors),
            )
        if verdict == b"REFUSED":
            raise refused(tape, rest[0].decode())
        return bool(verdict == b"OK")

    async def merge(self, commit: Commit, closing: Closing | None = None) -> str | Committed:
        """Commit a fork's block and receipt; the stream id of the receipt, or the mark of an earlier commit.

        May be repeated. Raises Fenced, Conflict or TapeBlocked with nothing written, Outage when the outcome is
        unknown or the server cannot write.
        """
        grant, receipt = commit.grant, commit.receipt
        keys = TapeKeys(self._namespace, grant.tape)
        frame = (
            (closing.type, closing.attempt, closing.number, closing.data, closing.ttl_ms)
            if closing
            else ("", 0, 0, b"", 0)
        )
        with self._server.outages():
            verdict, value = await _MERGE.run_in_transaction(
                self._server.commands,
                [
                    keys.tape,
                    keys.anchors,
                    keys.latest,
                    keys.state,
                    keys.turns,
                    keys.lock,
                    keys.fence,
                    keys.frames(grant.holder),
                    keys.journal(grant.holder),
                ],
                [
                    grant.holder,
                    grant.fence,
                    grant.lock,
                    commit.head.generation,
                    receipt.digest,
                    receipt.status,
                    receipt.steers,
                    *frame,
                    *block_args([*commit.block, receipt.entry().encode()], commit.anchors),
                ],
            )
        match verdict:
            case b"OK":
                return str(value.decode())
            case b"COMMITTED":
                return Committed.from_mark(value)
            case _:
                raise refused(grant.tape, value.decode())
