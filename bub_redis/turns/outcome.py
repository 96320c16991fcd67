"""How a turn ended, read from its tape: the receipt is the only witness."""

import json
from collections.abc import Iterable
from typing import cast

from bub_redis.errors import Conflict
from bub_redis.storage.lock import Committed
from bub_redis.storage.store import RedisTapeStore
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.receipt import Receipt, Status
from bub_redis.tape.store import Commit
from bub_redis.tape.stream_id import StreamId
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.record import Turn, TurnResult


async def read_receipt(store: RedisTapeStore, turn: Turn, committed: Committed) -> Receipt | None:
    """The receipt of a committed turn; None if the tape was reset since, which leaves only the mark. Raises Outage."""
    try:
        return await store.receipt(turn.tape, committed)
    except Conflict:
        return None


async def read_result(store: RedisTapeStore, turn: Turn, committed: Committed) -> TurnResult:
    """The result of a committed turn, from the receipt and the entry that holds the answer. Raises Outage."""
    receipt = await read_receipt(store, turn, committed)
    if receipt is None:
        return TurnResult(turn.id, cast(Status, committed.status), None, None, None, None)
    text = None
    if receipt.answer_entry is not None:
        committed_ms = StreamId.of(receipt.id).ms
        entry = await store.entry(turn.tape, receipt.answer_entry, committed_ms)
        text = entry.text if entry else None
    return TurnResult(turn.id, receipt.status, text, receipt.error, receipt.usage, receipt)


def told_result(turn: Turn, commit: Commit, receipt: Receipt) -> TurnResult | None:
    """The result of a commit that the tape has just taken as it was sent, which is what it would read back as.

    None if it took another one, of an earlier attempt or without a sidecar, or if the turn reset its tape.
    """
    if receipt != commit.receipt.placed(receipt.id) or commit.main.opening is not None:
        return None
    answer = None if receipt.answer is None else TapeEntry.decode(0, commit.main.block.entries[receipt.answer])
    text = None if answer is None else answer.text
    return TurnResult(turn.id, receipt.status, text, receipt.error, receipt.usage, receipt)


def used_steers(entries: Iterable[TapeEntry]) -> set[str]:
    """The ids of the steering messages that these entries of a turn hold."""
    return {steer for entry in entries if isinstance(steer := entry.meta.get("steer"), str)}


async def read_steers(store: RedisTapeStore, queue: TurnQueue, turn: Turn, committed: Committed) -> set[str]:
    """The ids of the steering messages that a committed turn used, from its block. Raises Outage.

    Where they do not stand there, since the tape was reset, they are the first that were sent: if one of those was
    cancelled unused, a later one is answered once more, and none is lost.
    """
    if not committed.steers:
        return set()
    receipt = await read_receipt(store, turn, committed)
    found = set() if receipt is None else used_steers(await store.block(turn.tape, receipt))
    sent = [str(steer.id) for steer in await queue.steers(turn)]
    rest = [steer for steer in sent if steer not in found]
    return found | set(rest[: max(0, committed.steers - len(found))])


async def finish(queue: TurnQueue, turn: Turn, committed: Committed, result: TurnResult, steers: Iterable[str]) -> None:
    """End a committed turn on the queue side, by nothing but what its receipt says. May be repeated. Raises Outage.

    `steers` are the ids of the steering messages that it used.
    """
    await queue.finish(
        turn,
        receipt_id=committed.receipt_id,
        digest=result.receipt.digest if result.receipt else "",
        status=result.status,
        result=json.dumps(result.as_dict()).encode(),
        steers=steers,
    )
