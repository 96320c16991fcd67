"""What every row runs on: a server of its own, worker processes, references, and sizes for a full or a quick run."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.reference import Reference, Unavailable, installed
from bub_redis import TurnClient
from bub_redis.settings import Settings, load_settings
from bub_redis.testing import EmbeddedServer, wait_until
from bub_redis.testing.tied import tied_command

ROOT = Path(__file__).resolve().parent.parent
SERVER_ARGS = ("--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")
"""No rewrite of the append-only file in the middle of a round: it would hit one side and not the other."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int
    share: float
    """What part of a full run's repeats is made."""
    long_tape: int
    mid_tape: int
    memory_turns: int
    latency_samples: int
    kills: int
    kills_default: int

    def repeats(self, full: int) -> int:
        """So many repeats where a full run makes `full`."""
        return max(3, round(full * self.share))


FULL = Sizes(7, 1.0, 1_000_000, 100_000, 50_000, 200, 5, 3)
QUICK = Sizes(3, 0.2, 20_000, 5_000, 1_000, 30, 1, 1)


@dataclass
class Stage:
    """Where rows are measured."""

    sizes: Sizes
    folder: Path
    """Where references have their environments."""

    @contextmanager
    def server(self, *, apart: bool = False) -> Iterator[EmbeddedServer]:
        """A fresh server on a data folder of its own: appendonly yes, appendfsync everysec.

        With `apart` it has a core for itself, and this process and all it starts meanwhile have the others: for rows of
        single round trips, which take half as long where the scheduler happens to put both sides on one core.
        """
        cores = sorted(os.sched_getaffinity(0)) if apart and hasattr(os, "sched_getaffinity") else []
        with TemporaryDirectory(prefix="bub-bench-") as data:
            with EmbeddedServer(appendonly=True, data_dir=Path(data), args=SERVER_ARGS) as server:
                if cores[1:] and server.pid:
                    os.sched_setaffinity(server.pid, cores[:1])
                    os.sched_setaffinity(0, cores[1:])
                try:
                    yield server
                finally:
                    if cores[1:]:
                        os.sched_setaffinity(0, cores)

    @asynccontextmanager
    async def reference(self, name: str, server: EmbeddedServer) -> AsyncIterator[Reference]:
        """A reference's driver, in its own environment, on this server."""
        async with Reference.started(name, self.folder, server.url) as reference:
            yield reference

    async def lacks(self, *names: str) -> str:
        """Why one of these references cannot run on this machine; empty if all of them can."""
        try:
            for name in names:
                await installed(name, self.folder)
        except Unavailable as reason:
            return str(reason)
        return ""


def settings_of(server: EmbeddedServer, **overrides: object) -> Settings:
    """The settings of clients and workers on this server."""
    return load_settings(redis_url=server.url, **overrides)


@asynccontextmanager
async def workers(
    server: EmbeddedServer, agent: str, count: int = 1, *, environment: Mapping[str, str] | None = None
) -> AsyncIterator[list[subprocess.Popen[bytes]]]:
    """Worker processes, as a user starts them, for `module:attribute`; killed at the end."""
    processes = [start_worker(server, agent, environment) for _ in range(count)]
    try:
        await _all_ready(server, count)
        yield processes
    finally:
        for process in processes:
            end(process)


def start_worker(
    server: EmbeddedServer, agent: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """One worker process; its log goes where a service's goes, into a file."""
    return start_python(server, "-m", "bub_redis.cli", "worker", agent, environment=environment)


def start_python(
    server: EmbeddedServer, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A Python process of this environment on the server, in the project's folder; on Linux it dies with this one."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BUB_")}
    with server.socket_path.with_name("worker.log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own interpreter
            tied_command([sys.executable, *arguments]),
            cwd=ROOT,
            env={**clean, "BUB_REDIS_URL": server.url, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C is for the benchmark, which ends its processes itself.
            start_new_session=True,
        )


async def _all_ready(server: EmbeddedServer, count: int) -> None:
    """Wait until so many workers have shown that they live."""
    async with TurnClient(settings_of(server)) as client:

        async def ready() -> bool:
            return len(await client.server.commands.keys("bub:worker:*")) >= count

        await wait_until(ready, f"{count} workers are ready", timeout_s=30)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process of ours, and wait until it is gone; may be repeated."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
