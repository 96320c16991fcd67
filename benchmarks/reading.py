"""Reading long tapes, how they came to be, and building messages from what was read."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Iterable
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import material
from benchmarks.measure import Series, Side, alternate, series
from benchmarks.reference import Reference, Unavailable
from benchmarks.rows import Row, Skipped, rate, ratio, times
from benchmarks.stage import Stage
from bub_redis import RedisTapeStore, Tape, TapeEntry, default_tape_context
from bub_redis.storage.client import RedisServer
from bub_redis.tape.records import decode_record, encode_records

_BEHIND = 50
_IMPORTED_AT_ONCE = 500
_NEEDLE = "a heron on the roof"
_NEEDLE_BEHIND = 1000
"""How far before the end of the long tape the searched word stands."""


async def long_tapes(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """Import, open, outline and search tapes of 1,000 to 1,000,000 entries."""
    sizes = (1000, stage.sizes.mid_tape, stage.sizes.long_tape)
    with stage.server(apart=True) as server:
        async with RedisTapeStore.from_url(server.url) as store:
            tapes = [Tape(f"customer-{size}", store) for size in sizes]
            # The last one is the long one.
            *_, per_second = [await _imported(tape, size) for tape, size in zip(tapes, sizes, strict=True)]
            yield Row(
                f"import of {sizes[-1]:,} entries of 300 bytes from JSONL",
                f"{per_second:,.0f} entries/s",
                target=">= 20,000 entries/s",
                met=per_second >= 20_000,
            )
            try:
                async with stage.reference("openai-agents", server) as session:
                    for row in await _open_rows(stage, store.server, tapes, sizes, session):
                        yield row
            except Unavailable as reason:
                yield Skipped("open a session beside RedisSession", str(reason))
            for what, limit_ms, work in (
                ("info()", 5, tapes[-1].info),
                ("anchors()", 10, tapes[-1].anchors),
                (f"first search hit, {_NEEDLE_BEHIND:,} entries back", 50, lambda: tapes[-1].search(_NEEDLE, limit=1)),
            ):
                took = []
                for _ in range(stage.sizes.repeats(50)):
                    began = time.perf_counter()
                    found = await work()
                    took.append(time.perf_counter() - began)
                    assert found, what
                yield Row(
                    f"{what} on {sizes[-1]:,} entries",
                    times(series(took), 99),
                    target=f"p50 <= {limit_ms} ms",
                    met=series(took).median <= limit_ms / 1000,
                )
    yield await _bub_open(stage)


async def _imported(tape: Tape, size: int) -> float:
    """Fill a tape from a JSONL file, batch after batch, and end it as a session's tape ends; entries per second."""
    with TemporaryDirectory(prefix="bub-bench-") as folder:
        file = Path(folder) / "tape.jsonl"
        bulk = size - _BEHIND - 3
        with file.open("wb") as lines:
            for number in range(1, bulk + 1):
                text = f"{material.SHORT} {_NEEDLE}" if number == bulk - _NEEDLE_BEHIND else material.SHORT
                lines.write(encode_records(number, [material.message(text).encode()]))
        began = time.perf_counter()
        batch: list[TapeEntry] = []
        with file.open("rb") as lines:
            for line in lines:
                record = decode_record(line)
                assert record is not None
                batch.append(record.entry)
                if len(batch) == _IMPORTED_AT_ONCE:
                    await tape.append(*batch)
                    batch = []
        if batch:
            await tape.append(*batch)
        per_second = bulk / (time.perf_counter() - began)
    await material.close_with_anchor(tape, _BEHIND)
    return per_second


async def _open_rows(
    stage: Stage, server: RedisServer, tapes: list[Tape], sizes: tuple[int, ...], session: Reference
) -> list[Row]:
    repeats = stage.sizes.repeats(300)
    # The import leaves hundreds of megabytes that are still to be written. Ours writes at each opening, and would wait.
    await asyncio.to_thread(os.sync)
    await session.ask("fill", items=[dict(entry.payload) for entry in material.messages(_BEHIND * 2)])

    def opening(tape: Tape) -> Side:
        async def side() -> float:
            return (await _openings(repeat(tape, repeats))).median

        return side

    async def theirs() -> float:
        return series(await session.ask("read", items=_BEHIND, times=repeats)).median

    *ours, reference = await alternate(stage.sizes.rounds, *map(opening, tapes), theirs)
    rows = []
    for size, mine in zip(sizes, ours, strict=True):
        over = mine.over(reference)
        rows.append(
            Row(
                f"open a session of {size:,} entries, last anchor {_BEHIND} back: lock, fork, messages",
                times(mine),
                f"RedisSession reading {_BEHIND} items: {times(reference)}",
                ratio(over),
                "p50 <= 2 ms; <= 3.00 ×",
                mine.median <= 0.002 and over <= 3.0,
            )
        )
    rows.append(
        Row(
            f"the same of {sizes[-1]:,} entries, the first time in a process: its context is read by itself",
            times(await _openings(Tape(tapes[-1].name, RedisTapeStore(server)) for _ in range(repeats))),
        )
    )
    apart = max(mine.median for mine in ours) / min(mine.median for mine in ours)
    rows.append(
        Row(
            "the same at every length: the slowest over the fastest", ratio(apart), target="<= 1.20 ×", met=apart <= 1.2
        )
    )
    return rows


async def _openings(tapes: Iterable[Tape]) -> Series:
    took = []
    for tape in tapes:
        began = time.perf_counter()
        async with tape.fork_tape(merge_back=False) as fork:
            read = await fork.read_messages()
            took.append(time.perf_counter() - began)
        assert len(read) == _BEHIND - 1
    return series(took)


async def _bub_open(stage: Stage) -> Row | Skipped:
    size = stage.sizes.mid_tape
    what = f"read {_BEHIND} entries behind the last anchor of {size:,}, Bub's file store in a new process"
    with stage.server() as server:
        try:
            async with stage.reference("bub", server) as bub:
                payload = dict(material.message(material.SHORT).payload)
                await bub.ask("fill", message=payload, entries=size, behind=_BEHIND)
                found = series(await bub.ask("open", times=3))
                await bub.ask("leave")
        except Unavailable as reason:
            return Skipped(what, str(reason))
    return Row(what, "see above", times(found))


async def building_messages(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """The messages of a model call, from 1,000 entries with tools."""
    entries = [TapeEntry.decode(number, entry.encode()) for number, entry in enumerate(_with_tools(1000), start=1)]
    context = default_tape_context()

    async def ours() -> float:
        began = time.perf_counter()
        for _ in range(10):
            assert len(await context.messages(entries)) == 1000
        return 10 * len(entries) / (time.perf_counter() - began)

    (mine,) = await alternate(stage.sizes.rounds, ours)
    yield Row(
        "building messages from 1,000 entries, half of them calls and results",
        rate(mine, " entries/s"),
        target=">= 20,000 entries/s",
        met=mine.median >= 20_000,
    )


def _with_tools(count: int) -> list[TapeEntry]:
    found: list[TapeEntry] = []
    for number in range(count // 4):
        call = {"id": f"call_{number}", "name": "order_status", "arguments": '{"order_id": "4711"}'}
        found += [
            TapeEntry.message({"role": "user", "content": material.SHORT}),
            TapeEntry.tool_call([call]),
            TapeEntry.tool_result([{"order": "4711", "state": "shipped"}], [call["id"]]),
            TapeEntry.message({"role": "assistant", "content": material.TEXT}),
        ]
    return found
