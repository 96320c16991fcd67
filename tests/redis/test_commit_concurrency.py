"""Many processes write to one tape: numbers without a gap, nothing lost, each writer's order kept."""

from collections import defaultdict
from contextlib import ExitStack
from itertools import pairwise

import pytest

from bub_redis.storage import RedisTapeStore
from bub_redis.tape import Tape
from bub_redis.tape.receipt import broken_receipts
from bub_redis.testing import EmbeddedServer, wait_until
from tests.redis.writers import BLOCK_ENTRIES, MERGE_EVERY, NOTES, TAPE, writer


@pytest.mark.parametrize(
    ("processes", "steps"),
    [(3, 40), pytest.param(8, 500, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
async def test_processes_at_once_lose_and_double_nothing(
    server: EmbeddedServer, redis_store: RedisTapeStore, processes: int, steps: int
) -> None:
    """Cases 73, 95 and 182: each step is an append or a merge; blocks are whole and have nobody in between."""
    with ExitStack() as stack:
        writers = [
            stack.enter_context(writer(server.url, redis_store.namespace, f"w{n}", steps, "mixed"))[0]
            for n in range(processes)
        ]
        await wait_until(
            lambda: all(process.exitcode is not None for process in writers), "all writers to be done", timeout_s=550
        )
    assert [process.exitcode for process in writers] == [0] * processes
    tape = Tape(TAPE, redis_store, sidecars=[NOTES])
    entries = await tape.query().all()
    assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
    assert broken_receipts(entries) == []
    seen: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for entry in entries:
        if entry.payload["name"] == "step":
            data = entry.payload["data"]
            seen[data["writer"]].append((data["number"], data["place"]))
    wanted = [
        (number, place) for number in range(steps) for place in range(1 if number % MERGE_EVERY else BLOCK_ENTRIES)
    ]
    assert dict(seen) == {f"w{n}": wanted for n in range(processes)}
    places = [entry.payload["data"]["place"] for entry in entries if entry.payload["name"] == "step"]
    for place, following in pairwise(places):
        assert following in (0, place + 1)
