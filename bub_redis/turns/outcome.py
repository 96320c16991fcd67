"""How a turn ended, read from its tape: the receipt is the only witness."""

import json

from bub_redis.storage.lock import Committed
from bub_redis.storage.store import RedisTapeStore
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.record import Turn, TurnResult


async def read_result(store: RedisTapeStore, turn: Turn, committed: Committed) -> TurnResult:
    """The result of a committed turn, from the receipt and the entry that holds the answer.

    Raises Conflict if the receipt is not on the tape any more, Outage.
    """
    receipt = await store.receipt(turn.tape, committed)
    text = None
    if receipt.answer_entry is not None:
        committed_ms = int(receipt.id.partition("-")[0])
        entry = await store.entry(turn.tape, receipt.answer_entry, committed_ms)
        text = entry.text if entry else None
    return TurnResult(turn.id, receipt.status, text, receipt.error, receipt.usage, receipt)


async def finish(queue: TurnQueue, store: RedisTapeStore, turn: Turn, committed: Committed) -> TurnResult:
    """End a committed turn on the queue side, by nothing but what its receipt says. May be repeated."""
    result = await read_result(store, turn, committed)
    await queue.finish(
        turn,
        receipt_id=committed.receipt_id,
        digest=result.receipt.digest if result.receipt else "",
        status=result.status,
        result=json.dumps(result.as_dict()).encode(),
    )
    return result
