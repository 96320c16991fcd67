"""Turns in bulk: how fast they are enqueued, and how many of them workers run."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from uuid import uuid4

from redis.asyncio import Redis

from benchmarks.measure import Series, alternate, series
from benchmarks.rows import Row, Skipped, rate, ratio
from benchmarks.stage import Stage, end, settings_of, start_python, start_worker
from bub_redis import TurnClient
from bub_redis.storage.keys import ARQ_JOB_PREFIX, QueueKeys
from bub_redis.testing import EmbeddedServer

_KEYS = QueueKeys("bub")
_PRODUCERS = 50
_TURNS_PER_SESSION = 10
_LOOK_S = 0.005
_AT_ONCE = "benchmarks.agents:at_once"
_OVER_CLIENT = "benchmarks.agents:over_client"
_BESIDE_NOTHING = (
    "turns/s, zero-latency model, 1 worker, beside jobs that do nothing on our Worker; stock arq at defaults"
)


async def enqueueing(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """Enqueue by one producer and by 50 in one process."""
    if reason := await stage.lacks("arq", "saq"):
        for producers in (1, _PRODUCERS):
            yield Skipped(_enqueue(producers), reason)
        return
    count = stage.sizes.repeats(2000)
    with stage.server() as server:
        settings = settings_of(server, max_open_turns=10_000_000)
        async with (
            TurnClient(settings) as client,
            stage.reference("arq", server) as arq,
            stage.reference("saq", server) as saq,
        ):
            for producers, least in ((1, 1.0), (_PRODUCERS, 1.5)):

                async def ours(producers: int = producers) -> float:
                    return await _enqueued_per_second(client, count, producers)

                async def stock(producers: int = producers) -> float:
                    found: float = await arq.ask("enqueue", count=count, producers=producers)
                    return found

                async def other(producers: int = producers) -> float:
                    found: float = await saq.ask("enqueue", count=count, producers=producers)
                    return found

                mine, theirs, shown = await alternate(stage.sizes.rounds, ours, stock, other)
                over = mine.over(theirs)
                yield Row(
                    _enqueue(producers),
                    rate(mine),
                    f"{rate(theirs)}; SAQ {rate(shown)}",
                    ratio(over),
                    f">= {least:.2f} ×",
                    over >= least,
                )


def _enqueue(producers: int) -> str:
    return f"enqueue beside arq.enqueue_job, {producers} producer{'s' if producers > 1 else ''}"


async def _enqueued_per_second(client: TurnClient, count: int, producers: int) -> float:
    run = uuid4().hex

    async def produce(number: int) -> None:
        for place in range(number, count, producers):
            await client.enqueue(f"{run}-{place}", "Where is my order?")

    began = time.perf_counter()
    await asyncio.gather(*map(produce, range(producers)))
    return count / (time.perf_counter() - began)


async def throughput(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """Turns per second of 1, 2 and 4 workers, beside jobs that do nothing."""
    sizes = stage.sizes
    turns, jobs = sizes.repeats(2000), sizes.repeats(6000)
    lacking = await stage.lacks("arq")
    with stage.server() as server:

        async def nothing() -> float:
            return await _no_op_jobs(server, jobs)

        async def one() -> float:
            return await _turns(server, turns, 1)

        async def two() -> float:
            return await _turns(server, turns, 2)

        rounds = max(2, sizes.rounds // 2)
        no_op, single, double = await alternate(rounds, nothing, one, two)
        four = series([await _turns(server, turns, 4) for _ in range(2)])
        over_client = series([await _turns(server, turns, 1, _OVER_CLIENT) for _ in range(2)])
        if lacking:
            yield Skipped(_BESIDE_NOTHING, lacking)
        else:
            async with stage.reference("arq", server) as arq:
                stock = series([await arq.ask("jobs", count=400) for _ in range(2)])
            yield _beside_nothing(no_op, single, stock)
    for row in _throughput_rows(single, double, four, over_client):
        yield row


def _beside_nothing(no_op: Series, single: Series, stock: Series) -> Row:
    over = single.over(no_op)
    return Row(
        _BESIDE_NOTHING,
        rate(single),
        f"{rate(no_op)}; stock arq, jobs that do nothing {rate(stock)}",
        ratio(over),
        ">= 0.25 ×",
        over >= 0.25,
    )


def _throughput_rows(single: Series, double: Series, four: Series, over_client: Series) -> list[Row]:
    beside = double.over(single)
    return [
        Row(
            "turns/s, 2 workers, beside 1",
            rate(double),
            rate(single),
            ratio(beside),
            ">= 0.85 ×",
            beside >= 0.85,
        ),
        Row("turns/s, 4 workers, beside 1", rate(four), rate(single), ratio(four.median / single.median)),
        Row(
            "turns/s, 1 worker, the same model over Republic's own client, beside the one that costs nothing",
            rate(over_client),
            rate(single),
            ratio(over_client.median / single.median),
        ),
    ]


async def _turns(server: EmbeddedServer, count: int, workers: int, agent: str = _AT_ONCE) -> float:
    """Turns per second, from a tenth to nine tenths of them; they wait before the workers start."""
    async with TurnClient(settings_of(server)) as client:
        await client.server.commands.flushall()
        for number in range(count):
            await client.enqueue(f"customer-{number % (count // _TURNS_PER_SESSION)}", "Where is my order?")
        processes = [start_worker(server, agent) for _ in range(workers)]
        try:
            return await _per_second(client, count, "GET", _KEYS.open_turns)
        finally:
            for process in processes:
                end(process)


async def _no_op_jobs(server: EmbeddedServer, count: int) -> float:
    body = json.dumps({"t": None, "f": "run_turn", "a": ["-"], "k": {}, "et": 1}).encode()
    async with TurnClient(settings_of(server)) as client:
        commands: Redis = client.server.commands
        await commands.flushall()
        async with commands.pipeline(transaction=False) as pipe:
            for number in range(count):
                job = f"{_KEYS.job_prefix}customer/{number}:1"
                pipe.set(ARQ_JOB_PREFIX + job, body, px=600_000)
                pipe.zadd(_KEYS.arq, {job: 1})
            await pipe.execute()
        process = start_python(server, "-m", "benchmarks.no_op")
        try:
            return await _per_second(client, count, "ZCARD", _KEYS.arq)
        finally:
            end(process)


async def _per_second(client: TurnClient, count: int, *left: str) -> float:
    marks = []
    for rest in (count * 9 // 10, count // 10):
        while int(await client.server.commands.execute_command(*left)) > rest:
            await asyncio.sleep(_LOOK_S)
        marks.append(time.perf_counter())
    return (count * 9 // 10 - count // 10) / (marks[1] - marks[0])
