"""kill -9 at random moments of merging: each block is on the tape and its sidecar whole, or not at all."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby

import pytest

from bub_redis.storage import RedisTapeStore
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.receipt import RECEIPT_EVENT, broken_receipts
from bub_redis.tape.sidecar import sidecar_tape_name
from bub_redis.testing import EmbeddedServer
from tests.redis.writers import BLOCK_ENTRIES, NOTES, TAPE, writer


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
async def test_a_commit_is_whole_or_not_there_whenever_its_process_is_killed(
    server: EmbeddedServer, namespace: str, kills: int
) -> None:
    """Case 78. What was acknowledged is there; of the one under way all or nothing."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed of the kills: {seed}")  # noqa: T201 - shown where the test fails
    moments = random.Random(seed)  # noqa: S311 - no secret
    acknowledged: dict[str, int] = {}
    async with RedisTapeStore.from_url(server.url, namespace=namespace) as store:
        for number in range(kills):
            acknowledged[f"w{number}"] = await killed_writer(server.url, namespace, f"w{number}", moments)
            # A dead fork's lock would only keep the next writer waiting.
            await store.server.commands.delete(TapeKeys(namespace, TAPE).lock)
        async with store.session(TAPE, "barrier", 1.0):
            pass  # what a dead writer sent and the server has not read yet is refused from here on
        tape = Tape(TAPE, store)
        entries = await tape.query().all()
        beside = await Tape(sidecar_tape_name(TAPE, NOTES.name), store).query().all()
    assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
    assert broken_receipts(entries) == []
    merged = list(whole_blocks(entries))
    assert merged == list(whole_blocks(beside))
    for killed, told in acknowledged.items():
        numbers = [number for name, number in merged if name == killed]
        assert numbers == list(range(len(numbers)))
        assert told <= len(numbers) <= told + 1, f"{killed} was told of {told} merges, {len(numbers)} are there"


async def killed_writer(url: str, namespace: str, name: str, moments: random.Random) -> int:
    """Let a writer merge, kill it at some moment after its first merge, and return how many merges it was told of."""
    with writer(url, namespace, name, 1000, "merges") as (process, told):
        await asyncio.to_thread(told.recv)
        acknowledged = 1
        # Not to wait for anything: the moment is meant to be any.
        await asyncio.sleep(moments.uniform(0.0, 0.03))  # noqa: TID251
        process.kill()
        process.join()
        with suppress(EOFError):
            while told.poll():
                told.recv()
                acknowledged += 1
    return acknowledged


def whole_blocks(entries: list[TapeEntry]) -> Iterator[tuple[str, int]]:
    """Writer and number of each block, after checking that it is whole and has nobody in between."""
    steps = [entry.payload["data"] for entry in entries if entry.payload["name"] != RECEIPT_EVENT]
    for (name, number), block in groupby(steps, key=lambda data: (data["writer"], data["number"])):
        assert [data["place"] for data in block] == list(range(BLOCK_ENTRIES))
        yield name, number
