"""`python -m benchmarks`: measure, print the table, write the README's figures; 1 if a target is missed."""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from benchmarks import commit, growth, latency, reading, report, spill, turns
from benchmarks.rows import Row, Skipped
from benchmarks.stage import FULL, QUICK, ROOT, Stage
from bub_redis.cli.running import stoppable
from bub_redis.storage.client import RedisServer

Group = Callable[[Stage], AsyncGenerator[Row | Skipped, None]]

GROUPS: dict[str, Group] = {
    "commit": commit.commits,
    "parallel": commit.parallel,
    "append": commit.appends,
    "long": reading.long_tapes,
    "messages": reading.building_messages,
    "enqueue": turns.enqueueing,
    "first-frame": latency.first_frame,
    "throughput": turns.throughput,
    "streaming": latency.streaming,
    "kill": latency.kills,
    "resume": latency.resuming,
    "spill": spill.spilling,
    "growth": growth.per_turn,
    "memory": growth.worker_memory,
}


_STOPS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
"""Signals that stop a run, and the exit code of each."""
_BROKEN_PIPE = 141


def main() -> int:
    """Run what the arguments ask for; the exit code."""
    arguments = _arguments()
    try:
        ended = asyncio.run(stoppable(_run(arguments), {signum: signum for signum in _STOPS}))
        if not isinstance(ended, signal.Signals):
            return ended
        _say(f"stopped by {ended.name}; no figures are written")
        return _STOPS[ended]
    except BrokenPipeError:
        # Whoever read the output went away; what is left of it must not become a traceback at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


async def _run(arguments: argparse.Namespace) -> int:
    only: list[str] = arguments.only or list(GROUPS)
    stage = Stage(QUICK if arguments.quick else FULL, ROOT / ".bench")
    rows = await _measured(stage, only)
    with stage.server() as server:
        described = await _described(server.url)
    text = f"{report.machine(stage.folder, described)}\n\n{report.table(rows)}"
    _say(f"\n{text}")
    if not arguments.quick and not arguments.only:
        report.write(text)
    missed = [row.what for row in rows if isinstance(row, Row) and row.met is False]
    if missed:
        _say(f"\n{len(missed)} of {len(rows)} rows miss their target")
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=GROUPS, metavar="ROW", help=", ".join(GROUPS))
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds: to try it, not to compare")
    return parser.parse_args()


async def _measured(stage: Stage, only: list[str]) -> list[Row | Skipped]:
    rows: list[Row | Skipped] = []
    for name in only:
        began = time.monotonic()
        # Closed here and not when it is collected: its processes and folders must be gone before the loop ends.
        async with aclosing(GROUPS[name](stage)) as found:
            async for row in found:
                rows.append(row)
                _say(f"{name}: {report.line(row)}")
        _say(f"{name}: took {time.monotonic() - began:.0f} s")
    return rows


async def _described(url: str) -> str:
    async with RedisServer(url) as server:
        info = await server.info()
    return f"{info.name} {info.version}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
