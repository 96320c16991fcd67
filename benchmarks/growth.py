"""What stays: bytes and keys in Redis per turn, and the memory of a worker."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from benchmarks.rows import Row, Skipped
from benchmarks.stage import Stage, settings_of, workers
from bub_redis import TurnClient
from bub_redis.testing import wait_until

_AT_ONCE = "benchmarks.agents:at_once"
_WAITING = 200
_MARKS = (20, 70, 450, 500)


async def per_turn(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """500 turns of one session: what each leaves behind once the TTLs have run."""
    bytes_at: dict[int, int] = {}
    keys_at: dict[int, int] = {}
    with stage.server() as server:
        short = {"BUB_FRAMES_TTL_S": "1", "BUB_TURN_TTL_S": "1", "BUB_RECONCILE_S": "0.5"}
        async with workers(server, _AT_ONCE, environment=short), TurnClient(settings_of(server)) as client:
            done = 0
            for mark in _MARKS:
                while done < mark:
                    batch = [
                        await client.enqueue("customer-42", "Where is my order?") for _ in range(min(50, mark - done))
                    ]
                    await client.result(batch[-1])
                    done += len(batch)
                bytes_at[mark], keys_at[mark] = await _kept(client)
    early = (bytes_at[70] - bytes_at[20]) / 50
    late = (bytes_at[500] - bytes_at[450]) / 50
    apart = late / early - 1
    yield Row(
        "bytes in Redis per turn, mean of turns 450–500 beside 20–70",
        f"{late:,.0f} bytes",
        f"{early:,.0f} bytes",
        f"{late / early:.3f} ×",
        "± 5 %",
        abs(apart) <= 0.05,
    )
    counts = ", ".join(f"{keys_at[mark]} after {mark}" for mark in _MARKS)
    yield Row(
        "keys of a session once the TTLs have run", counts, target="constant", met=len(set(keys_at.values())) == 1
    )


async def _kept(client: TurnClient) -> tuple[int, int]:
    """Bytes and number of the session's keys that stay, once all others are gone."""
    commands: Any = client.server.commands
    kept: list[bytes] = []

    async def settled() -> bool:
        kept[:] = [key async for key in commands.scan_iter("*customer-42*")]
        return not [key for key in kept if await commands.pttl(key) >= 0]

    # Direct appends are known for two minutes; there are none here, so a few seconds are enough.
    await wait_until(settled, "all keys with a TTL are gone", timeout_s=30, interval_s=0.1)
    return sum([await commands.memory_usage(key, samples=0) for key in kept]), len(kept)


async def worker_memory(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """Resident memory of one worker process."""
    last = stage.sizes.memory_turns
    with stage.server() as server:
        async with workers(server, "benchmarks.agents:clock", environment={"BUB_MAX_JOBS": str(_WAITING)}) as (
            process,
        ):
            async with TurnClient(settings_of(server)) as client:
                idle = _resident_mb(process.pid)
                turns = [await client.enqueue(f"listener-{number}", "Tell me") for number in range(_WAITING)]
                await wait_until(lambda: _all_running(client, process.pid), "all turns run", timeout_s=30)
                busy = _resident_mb(process.pid)
                for turn in turns:
                    await client.result(turn)
        async with workers(server, _AT_ONCE) as (process,), TurnClient(settings_of(server)) as client:
            after: dict[int, float] = {}
            for mark in (last // 10, last):
                await _run_turns(client, mark - sum(after), mark)
                after[mark] = _resident_mb(process.pid)
    marks = ", ".join(f"{megabytes:.0f} MB after {turns:,} turns" for turns, megabytes in after.items())
    flat = after[last] / after[last // 10]
    yield Row(
        "memory of a worker (RSS)",
        f"{idle:.0f} MB idle, {busy:.0f} MB with {_WAITING} streaming turns, {marks}",
        ratio=f"{flat:.2f} × from {last // 10:,} to {last:,}",
        target="flat: <= 1.10 ×",
        met=flat <= 1.1,
    )


async def _run_turns(client: TurnClient, count: int, mark: int) -> None:
    for start in range(0, count, 1000):
        for number in range(start, min(count, start + 1000)):
            await client.enqueue(f"customer-{mark}-{number // 10}", "Where is my order?")
        await wait_until(lambda: _open_turns(client), "all turns have ended", timeout_s=120, interval_s=0.05)


async def _open_turns(client: TurnClient) -> bool:
    return int(await client.server.commands.get("bub:open")) == 0


async def _all_running(client: TurnClient, pid: int) -> bool:
    commands: Any = client.server.commands
    found = [await commands.hgetall(key) for key in await commands.keys("bub:worker:*")]
    return any(int(worker[b"pid"]) == pid and int(worker[b"running"]) == _WAITING for worker in found)


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024
