"""A worker dies while it writes a large result ahead, or before it merges what stands for it."""

import re
from datetime import timedelta

import pytest

from bub_redis.settings import Settings
from bub_redis.tape import SpillStore, Tape
from bub_redis.tape.receipt import broken_receipts
from bub_redis.testing import wait_until
from bub_redis.turns import TurnClient
from tests.redis.spilling_agent import LARGE
from tests.redis.workers import start_worker, worker_processes

AGENT = "tests.redis.spilling_agent:agent"
SPILL = SpillStore()


@pytest.mark.parametrize("point", ["during-spill@2", "before-result", "before-merge", "after-merge"])
async def test_a_result_is_stored_whole_whatever_the_moment_of_death(
    client: TurnClient, settings: Settings, point: str
) -> None:
    """Case 121: the handle that is on the tape reads byte for byte; what was left half-written is in nobody's way."""
    turn = await client.enqueue("s", "report", turn_id="m1")
    dying = start_worker(settings, AGENT, BUB_FAULTS=point)
    await wait_until(lambda: dying.poll() is not None, f"the worker to die {point}", timeout_s=20)
    assert dying.returncode == -9
    with worker_processes(settings, AGENT):
        result = await client.result(turn, timeout=timedelta(seconds=30))
    assert result.status == "completed"
    tape = Tape("s", client.store, sidecars=[SPILL])
    entries = await tape.query().all()
    assert broken_receipts(entries) == []
    written = [entry.payload["data"] for entry in entries if entry.payload.get("name") == "spill.write"]
    assert [data["status"] for data in written] == ["ok"]
    handle = written[0]["handle"]
    assert re.search(handle, str(result.text))
    assert "".join([chunk async for chunk in SPILL.content(tape, handle)]) == LARGE
    assert await SPILL.intact(tape, handle)
    swept = await SPILL.sweep(tape, older_than=timedelta(0))
    assert (swept > 0) is (point in {"during-spill@2", "before-result"})
    assert await SPILL.intact(tape, handle)
