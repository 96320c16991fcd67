"""What a tape must look like when the dust has settled. It looks at entries, never at counters."""

from collections.abc import Sequence

from bub_redis.storage import RedisTapeStore
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.receipt import RECEIPT_EVENT, broken_receipts


async def committed_turns(store: RedisTapeStore, session: str, prompts: dict[str, str]) -> list[str]:
    """The ids of the turns on a session's tape, in order, after checking that each block is whole.

    `prompts` says what each turn was asked: its block must hold that prompt, once, and an answer.
    """
    entries = await Tape(session, store).query().all()
    assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
    assert broken_receipts(entries) == []
    assert_no_half_pair(entries)
    turns: list[str] = []
    block: list[TapeEntry] = []
    for entry in entries:
        block.append(entry)
        if entry.payload.get("name") == RECEIPT_EVENT:
            data = entry.payload["data"]
            own = block[-1 - data["entries"] : -1]
            asked = [e.text for e in own if e.kind == "message" and e.payload["role"] == "user"]
            answered = [e.text for e in own if e.kind == "message" and e.payload["role"] == "assistant"]
            assert asked == [prompts[data["turn"]]]
            assert data["status"] != "completed" or len(answered) == 1
            turns.append(data["turn"])
            block = []
    return turns


def assert_no_half_pair(entries: Sequence[TapeEntry]) -> None:
    """Every call is answered by the next result entry, and by nothing else."""
    waiting: list[str] = []
    for entry in entries:
        if entry.kind == "tool_call":
            assert waiting == []
            waiting = [call["id"] for call in entry.payload["calls"]]
        elif entry.kind == "tool_result":
            assert entry.payload["call_ids"] == waiting
            waiting = []
    assert waiting == []
