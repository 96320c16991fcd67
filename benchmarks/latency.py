"""What a person waits for: the first frame, a word on its way, a turn whose worker died, a connection that was lost."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import uuid4

from benchmarks.agents import DELTAS
from benchmarks.measure import Series, series
from benchmarks.rows import Row, Skipped, times
from benchmarks.stage import Stage, settings_of, workers
from bub_redis import TurnClient
from bub_redis.testing import EmbeddedServer
from bub_redis.turns.frames import JOIN_S, Frame
from bub_redis.turns.record import Turn

_STREAMS = 200
_SESSIONS = 20


async def first_frame(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """From enqueueing to the worker's first frame at a follower."""
    what = "enqueue → the worker's first frame at a follower, idle worker; stock arq: enqueue → the job's first word"
    if reason := await stage.lacks("arq"):
        yield Skipped(what, reason)
        return
    count = stage.sizes.latency_samples
    with stage.server() as server:
        async with (
            workers(server, "benchmarks.agents:at_once"),
            TurnClient(settings_of(server)) as client,
        ):
            await _first_frames(client, 5)
            mine = await _first_frames(client, count)
        async with stage.reference("arq", server) as arq:
            theirs = series(await arq.ask("pickup", count=max(10, count // 5)))
    yield Row(
        what,
        times(mine, 99),
        times(theirs, 99),
        f"{mine.median / theirs.median:.3f} ×",
        "p50 <= 5 ms, p99 <= 25 ms",
        mine.median <= 0.005 and mine.percentile(99) <= 0.025,
    )


async def _first_frames(client: TurnClient, count: int) -> Series:
    took = []
    for number in range(count):
        began = time.perf_counter()
        turn = await client.enqueue(f"customer-{number % _SESSIONS}", "Where is my order?")
        took.extend([time.perf_counter() - began async for frame in client.follow(turn) if frame.type == "started"])
    return series(took)


async def streaming(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """200 turns that stream at once on one worker, all of them followed by one process."""
    with stage.server() as server:
        async with (
            workers(server, "benchmarks.agents:clock", environment={"BUB_MAX_JOBS": str(_STREAMS)}),
            TurnClient(settings_of(server)) as client,
        ):
            heard = await asyncio.gather(*(_heard(client, number) for number in range(_STREAMS)))
    assert all(len(stream) == DELTAS for stream in heard)
    # While all of them stream: not while they start, which is a row of its own, nor while they end.
    begin, end = max(stream[0][0] for stream in heard), min(stream[-1][0] for stream in heard)
    late = series([late_s for stream in heard for said, late_s in stream if begin <= said <= end])
    yield Row(
        f"{_STREAMS} streaming turns on one worker, 5 deltas/s each: latency beyond the join window "
        f"of {JOIN_S * 1000:g} ms",
        times(late, 99),
        target="p99 <= 50 ms",
        met=late.percentile(99) <= 0.05,
    )


async def _heard(client: TurnClient, number: int) -> list[tuple[int, float]]:
    """When each word of a stream was said, and how much later than the join window explains it arrived."""
    found = []
    turn = await client.enqueue(f"listener-{number}-{uuid4().hex}", "Tell me")
    async for frame in client.follow(turn):
        if frame.type == "text":
            now = time.monotonic_ns()
            found += [(int(said), max(0.0, (now - int(said)) / 1e9 - JOIN_S)) for said in frame.data["delta"].split()]
    return found


async def kills(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """kill -9 of the worker that runs a turn, to the frame that another one runs it."""
    fast = {"BUB_LEASE_S": "2", "BUB_BEAT_S": "0.4", "BUB_RECONCILE_S": "0.1"}
    cases: tuple[tuple[str, dict[str, str], int, float], ...] = (
        ("lease 2 s, beat 0.4 s, reconcile 0.1 s", fast, stage.sizes.kills, 3.0),
        ("default settings", {}, stage.sizes.kills_default, 15.0),
    )
    for what, environment, count, limit_s in cases:
        took = series([await _killed(stage, environment) for _ in range(count)])
        yield Row(
            f"kill -9 of a worker → its turn runs elsewhere, {what}",
            f"median {took.median:.2f} s, longest {took.high:.2f} s of {count}",
            target=f"<= {limit_s:g} s",
            met=took.high <= limit_s,
        )


async def _killed(stage: Stage, environment: dict[str, str]) -> float:
    with stage.server() as server:
        async with (
            workers(server, "benchmarks.agents:slowly", 2, environment=environment) as processes,
            TurnClient(settings_of(server)) as client,
        ):
            turn = await client.enqueue("customer-42", "Tell me")
            began = 0.0
            async with aclosing(client.follow(turn)) as frames:
                async for frame in frames:
                    if frame.type == "text" and not began:
                        victim = await _pid_of(client, turn)
                        began = time.perf_counter()
                        next(process for process in processes if process.pid == victim).kill()
                    elif frame.type == "restarted":
                        break
            return time.perf_counter() - began


async def _pid_of(client: TurnClient, turn: Turn) -> int:
    standing = await client.queue.standing(turn)
    assert standing is not None
    pid = await client.server.commands.execute_command("HGET", f"bub:worker:{standing.worker}", "pid")
    return int(pid)


async def resuming(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """A follower that lost its connection comes back to a turn that streams."""
    with stage.server() as server:
        async with (
            workers(server, "benchmarks.agents:slowly"),
            TurnClient(settings_of(server)) as client,
        ):
            turn = await client.enqueue("customer-42", "Tell me")
            seen = await _some_frames(client, turn)
            known = [await _resumed(client, turn, seen[0]) for _ in range(stage.sizes.latency_samples)]
            new = [await _resumed_anew(server, turn, seen[0]) for _ in range(stage.sizes.latency_samples)]
    for what, took in (("in a process that follows others", series(known)), ("in a new process's client", series(new))):
        yield Row(
            f"resume a follower, first frame, {what}",
            times(took, 99),
            target="p50 <= 10 ms",
            met=took.median <= 0.01,
        )


async def _some_frames(client: TurnClient, turn: Turn) -> list[Frame]:
    """The first frames of a turn, once there are ten."""
    seen: list[Frame] = []
    async with aclosing(client.follow(turn)) as frames:
        async for frame in frames:
            if frame.type == "text":
                seen.append(frame)
            if len(seen) == 10:
                break
    return seen


async def _resumed(client: TurnClient, turn: Turn, after: Frame) -> float:
    began = time.perf_counter()
    async with aclosing(client.follow(turn, after=after.id)) as frames:
        async for frame in frames:
            assert frame.type == "text"
            return time.perf_counter() - began
    raise AssertionError("a turn that streams has a next frame")


async def _resumed_anew(server: EmbeddedServer, turn: Turn, after: Frame) -> float:
    async with TurnClient(settings_of(server)) as client:
        return await _resumed(client, turn, after)
