"""Commits: a merge beside a bare MULTI of the same XADDs, alone and in parallel, and direct appends."""

import asyncio
import csv
import io
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from redis.asyncio import Redis

from benchmarks import material
from benchmarks.measure import Series, Watch, alternate, series
from benchmarks.reference import Unavailable
from benchmarks.rows import Row, Skipped, rate, ratio, times
from benchmarks.stage import Stage
from bub_redis import RedisTapeStore, TapeEntry

_PARALLEL = 16
_PARALLEL_ENTRIES = 50
_TAPE = itertools.count()


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _fields(entry: TapeEntry) -> dict[Any, Any]:
    """An entry as somebody writes it who uses redis-py alone."""
    return {"kind": entry.kind, "payload": _json(entry.payload), "meta": _json(entry.meta), "date": entry.date}


async def _bare_multi(client: Redis, stream: str, entries: Sequence[TapeEntry]) -> None:
    async with client.pipeline(transaction=True) as pipe:
        for entry in entries:
            pipe.xadd(stream, _fields(entry))
        await pipe.execute()


def _new_tape() -> str:
    return f"customer-{next(_TAPE)}"


async def commits(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """A merge of 1, 10, 50 and 500 entries of 1 KB."""
    with stage.server() as server:
        async with RedisTapeStore.from_url(server.url) as store, Redis.from_url(server.url) as client:
            for size, repeats in ((1, 400), (10, 200), (50, 100), (500, 16)):
                yield await _commit_row(stage, store, client, size, stage.sizes.repeats(repeats))


async def _commit_row(stage: Stage, store: RedisTapeStore, client: Redis, size: int, repeats: int) -> Row:
    laps_s: list[float] = []

    async def ours() -> float:
        watch, tape = Watch(), _new_tape()
        for _ in range(repeats):
            fork, entries = await material.forked(store, tape), material.messages(size)
            with watch():
                await material.merge(fork, entries)
        laps_s.extend(watch.laps_s)
        return size * repeats / watch.total_s

    async def bare() -> float:
        watch, stream = Watch(), _new_tape()
        for _ in range(repeats):
            entries = material.messages(size)
            with watch():
                await _bare_multi(client, stream, entries)
        return size * repeats / watch.total_s

    mine, theirs = await alternate(stage.sizes.rounds, ours, bare)
    over, commit = mine.over(theirs), series(laps_s)
    wanted = {50: ">= 1.00 ×; p50 <= 5 ms", 500: ">= 1.00 ×"}.get(size)
    return Row(
        f"commit of {size} {'entry' if size == 1 else 'entries'} of 1 KB, beside a bare MULTI of the same XADDs",
        f"{rate(mine, ' entries/s')}; {times(commit, 99)}",
        rate(theirs, " entries/s"),
        ratio(over),
        wanted or "shown",
        None if wanted is None else over >= 1.0 and (size != 50 or commit.median <= 0.005),
    )


async def parallel(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """16 tapes at once, and merges while others append."""
    with stage.server() as server:
        async with RedisTapeStore.from_url(server.url) as store, Redis.from_url(server.url) as client:
            yield await _parallel_row(stage, store, client)
            yield await _starvation_row(stage, store)


async def _parallel_row(stage: Stage, store: RedisTapeStore, client: Redis) -> Row:
    repeats = stage.sizes.repeats(15)
    entries_of_round = _PARALLEL * _PARALLEL_ENTRIES * repeats

    async def ours() -> float:
        watch, tapes = Watch(), [_new_tape() for _ in range(_PARALLEL)]
        for _ in range(repeats):
            forks = [await material.forked(store, tape) for tape in tapes]
            blocks = [material.messages(_PARALLEL_ENTRIES) for _ in tapes]
            with watch():
                await asyncio.gather(*(material.merge(*pair) for pair in zip(forks, blocks, strict=True)))
        return entries_of_round / watch.total_s

    async def bare() -> float:
        watch, streams = Watch(), [_new_tape() for _ in range(_PARALLEL)]
        for _ in range(repeats):
            blocks = [material.messages(_PARALLEL_ENTRIES) for _ in streams]
            with watch():
                pairs = zip(streams, blocks, strict=True)
                await asyncio.gather(*(_bare_multi(client, stream, block) for stream, block in pairs))
        return entries_of_round / watch.total_s

    mine, theirs = await alternate(stage.sizes.rounds, ours, bare)
    over = mine.over(theirs)
    return Row(
        f"the same, {_PARALLEL} tapes in parallel, {_PARALLEL_ENTRIES} entries each",
        rate(mine, " entries/s"),
        rate(theirs, " entries/s"),
        ratio(over),
        ">= 1.00 ×",
        over >= 1.0,
    )


async def _starvation_row(stage: Stage, store: RedisTapeStore) -> Row:
    """Merges of a tape to which others append all the time, as they do to 15 more."""
    tapes = [_new_tape() for _ in range(_PARALLEL)]
    appended = 0

    async def append_on(tape: str) -> None:
        nonlocal appended
        while True:
            await store.append(tape, material.message())
            appended += 1

    appenders = [asyncio.create_task(append_on(tape)) for tape in tapes]
    watch = Watch()
    for _ in range(stage.sizes.repeats(150)):
        fork, entries = await material.forked(store, tapes[0]), material.messages(_PARALLEL_ENTRIES)
        with watch():
            await material.merge(fork, entries)
    for appender in appenders:
        appender.cancel()
    await asyncio.gather(*appenders, return_exceptions=True)
    laps = series(watch.laps_s)
    return Row(
        f"merges of {_PARALLEL_ENTRIES} entries while {_PARALLEL} others append, one of them to the same tape",
        f"{times(laps, 99)}; {appended:,} appends meanwhile",
        target="all succeed, longest <= 10 × p50",
        met=laps.high <= 10 * laps.median,
    )


async def appends(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """One entry of 1 KB, by itself."""
    repeats = stage.sizes.repeats(1000)
    with stage.server() as server:
        async with RedisTapeStore.from_url(server.url) as store, Redis.from_url(server.url) as client:

            async def ours() -> float:
                tape, entries = _new_tape(), material.messages(repeats)
                began = time.perf_counter()
                for entry in entries:
                    await store.append(tape, entry)
                return repeats / (time.perf_counter() - began)

            async def bare() -> float:
                stream, entries = _new_tape(), material.messages(repeats)
                began = time.perf_counter()
                for entry in entries:
                    await client.xadd(stream, _fields(entry))
                return repeats / (time.perf_counter() - began)

            mine, theirs = await alternate(stage.sizes.rounds, ours, bare)
        over = mine.over(theirs)
        yield Row(
            "direct append of 1 KB beside a bare XADD, one after another",
            rate(mine),
            rate(theirs),
            ratio(over),
            ">= 0.60 ×",
            over >= 0.6,
        )
        yield _server_limit(str(server.socket_path))
        yield await _bub_append(stage, repeats, mine)


def _server_limit(socket_path: str) -> Row | Skipped:
    what = "the server's own limit: redis-benchmark, XADD of 1 KB by 1 and by 50 clients"
    program = shutil.which("redis-benchmark") or shutil.which("valkey-benchmark")
    if program is None:
        return Skipped(what, "there is no redis-benchmark on PATH (Debian: apt install redis-tools)")
    command = [program, "-s", socket_path, "--csv", "-n", "20000"]
    # Plain letters: the program does not escape its own output.
    xadd = ["XADD", "limit", "*", "kind", "message", "payload", "x" * 900, "meta", "-" * 30, "date", "-" * 32]
    found = []
    for clients in ("1", "50"):
        done = subprocess.run([*command, "-c", clients, *xadd], capture_output=True, text=True, check=True)  # noqa: S603
        *_, last = csv.reader(io.StringIO(done.stdout))
        found.append(float(last[1]))
    return Row(what, "–", f"{found[0]:,.0f}/s by 1, {found[1]:,.0f}/s by 50")


async def _bub_append(stage: Stage, repeats: int, ours: Series) -> Row | Skipped:
    what = "direct append of 1 KB, Bub's file store (one process, no sync to the disk)"
    with stage.server() as server:
        try:
            async with stage.reference("bub", server) as bub:
                payload = dict(material.message().payload)
                found = [await bub.ask("append", message=payload, count=repeats) for _ in range(stage.sizes.rounds)]
                await bub.ask("leave")
        except Unavailable as reason:
            return Skipped(what, str(reason))
    theirs = series(found)
    return Row(what, rate(ours), rate(theirs), ratio(ours.over(theirs)))
