"""A tape of a million entries is as quick to open as one of a thousand, and takes no more memory."""

import asyncio
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from bub_redis.storage import RedisTapeStore
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.fork import Fork

LONG, SHORT, TAIL = 1_000_000, 1_000, 50
BATCH = 500
ROUNDS = 200
Ask = Callable[[Tape], Awaitable[object]]


async def fill(tape: Tape, length: int, batch_entries: int = BATCH) -> int:
    """Entries in batches, each with an anchor; the last one stands `TAIL` entries before the end. How many anchors."""
    text = TapeEntry.message({"role": "user", "content": "x" * 40})
    usage = TapeEntry.event("run", {"usage": {"total_tokens": 7}})
    batch = [TapeEntry.anchor("phase"), usage, *[text] * (batch_entries - 2)]
    turns = asyncio.Semaphore(4)

    async def append() -> None:
        async with turns:
            await tape.append(*batch)

    batches = (length - TAIL - 1) // batch_entries
    await asyncio.gather(*(append() for _ in range(batches)))
    filler = length - TAIL - 1 - batches * batch_entries
    await tape.append(*[text] * filler, TapeEntry.anchor("last"), *[text] * TAIL)
    return batches + 1


async def opened(tape: Tape) -> None:
    """What a turn reads before its first model call."""
    store = tape.store
    assert isinstance(store, RedisTapeStore)
    head = await store.head(tape.name)
    assert len(await store.fetch_until(tape.query().last_anchor(), head)) == TAIL


async def tail(tape: Tape) -> None:
    """The newest twenty entries."""
    store = tape.store
    assert isinstance(store, RedisTapeStore)
    numbers = []
    async for entry in store.newest_first(tape.query()):
        numbers.append(entry.id)
        if len(numbers) == 20:
            break
    assert numbers == list(range(numbers[0], numbers[0] - 20, -1))


ASKED: dict[str, Ask] = {
    "open, last anchor 50 back": opened,
    "info": lambda tape: tape.info(),
    "anchors": lambda tape: tape.anchors(),
    "last usage": lambda tape: tape.last_usage(),
    "first 20": lambda tape: tape.query().limit(20).all(),
    "tail": tail,
}


async def medians_ms(ask: Ask, tapes: list[Tape]) -> list[float]:
    """The median time of a question on each tape, asked in turns, so that a slow moment slows both."""
    times: list[list[float]] = [[] for _ in tapes]
    for _ in range(ROUNDS):
        for tape, taken in zip(tapes, times, strict=True):
            began = time.perf_counter()
            await ask(tape)
            taken.append((time.perf_counter() - began) * 1000)
    return [statistics.median(taken) for taken in times]


async def peak_bytes(ask: Ask, tape: Tape) -> int:
    await ask(tape)
    tracemalloc.start()
    try:
        await ask(tape)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_million_entries_cost_no_more_than_a_thousand(redis_store: RedisTapeStore) -> None:
    """Cases 4, 127 and 188, and section 7 of the design: ratio at most 1.2, open in at most 2 ms."""
    short, long = Tape("short", redis_store), Tape("long", redis_store)
    await fill(short, SHORT, SHORT // 25)
    anchors = await fill(long, LONG)
    info = await long.info()
    assert (info.entries, info.anchors, info.entries_since_last_anchor) == (LONG, anchors, TAIL)
    for what, ask in ASKED.items():
        of_short, of_long = await medians_ms(ask, [short, long])
        memory = [await peak_bytes(ask, tape) for tape in (short, long)]
        print(f"{what}: {of_short:.2f} ms → {of_long:.2f} ms, peak {memory[0] // 1024} → {memory[1] // 1024} KiB")  # noqa: T201
        # A fifth of a millisecond more is noise of the machine, not growth with the tape.
        assert of_long <= max(1.2 * of_short, of_short + 0.2), what
        assert memory[1] <= 1.5 * memory[0] + 64 * 1024, what


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_fork_of_a_long_tape_opens_without_reading_it(redis_store: RedisTapeStore) -> None:
    """Case 188."""
    tape = Tape("long", redis_store)
    await fill(tape, 50_000)
    async with tape.fork_tape() as fork:
        await fork.append(TapeEntry.event("e"))
    async with redis_store.session("long", "next", 5.0) as grant:
        began = time.perf_counter()
        await Fork.open(redis_store, grant)
        assert time.perf_counter() - began < 0.1
