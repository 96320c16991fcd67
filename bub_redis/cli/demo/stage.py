"""Where the demo plays: a server, worker processes with a short lease, and nothing of it left in the end."""

import json
import os
import secrets
import subprocess
import sys
from asyncio import sleep
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import bub_redis
from bub_redis.cli.connect import connected
from bub_redis.errors import BubError
from bub_redis.settings import Settings, load_settings
from bub_redis.storage.client import RedisServer
from bub_redis.storage.keys import ARQ_JOB_PREFIX, QueueKeys
from bub_redis.testing import EmbeddedServer
from bub_redis.testing.tied import tied_command
from bub_redis.turns import TurnClient

WORKERS: Final = 2
SHORT_LEASE: Final = {"lease_s": 1.5, "beat_s": 0.4, "reconcile_s": 0.1}
"""So that nobody has to wait for long until a killed worker's turn runs again."""
_AGENT = "bub_redis.cli.demo.agent:agent"
_START_LIMIT_S = 20.0
_STOP_LIMIT_S = 5.0
_PROBE_INTERVAL_S = 0.02
_SWEPT_AT_ONCE = 500


class DemoFailed(BubError):
    """The demo could not play to its end."""


@dataclass
class WorkerProcess:
    """A `bub-redis worker` that ends with the demo, its log in a file."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    id: str = ""
    """What the worker calls itself, once it is ready."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.pid})"

    async def ready(self) -> None:
        """Wait until it takes turns. Raises DemoFailed with what it said if it ends instead."""
        for _ in range(int(_START_LIMIT_S / _PROBE_INTERVAL_S)):
            for line in self._lines():
                if line.get("event") == "worker.ready":
                    self.id = line["worker"]
                    return
            if self.process.poll() is not None:
                raise DemoFailed(f"{self} ended with code {self.process.returncode}: {self._last_words()}")
            await sleep(_PROBE_INTERVAL_S)
        raise DemoFailed(f"{self} is not ready after {_START_LIMIT_S:g} s: {self._last_words()}")

    def _lines(self) -> list[dict[str, str]]:
        found = []
        for line in self.log.read_text(encoding="utf-8").splitlines():
            # Other text than JSON is a traceback, and the last line may be half written.
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def _last_words(self) -> str:
        return (self.log.read_text(encoding="utf-8").splitlines() or ["it said nothing"])[-1]

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()

    def end(self) -> None:
        """End it in good order, or by force if it takes too long; may be repeated."""
        self.process.terminate()
        try:
            self.process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Stage:
    """What plays."""

    settings: Settings
    client: TurnClient
    workers: tuple[WorkerProcess, ...]
    server_name: str
    socket: Path | None
    """The embedded server's socket; None on a server of the user's."""


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    """Start everything, and take all of it away in the end, the keys on a user's own server as well.

    Raises what `connected` raises, ConfigError without the embedded server, DemoFailed if a worker does not start.
    """
    async with AsyncExitStack() as stack:
        given = load_settings()
        own_server = "redis_url" in given.model_fields_set
        embedded = None if own_server else stack.enter_context(EmbeddedServer())
        settings = load_settings(
            redis_url=given.redis_url if embedded is None else embedded.url,
            tape_url=given.tape_url if embedded is None else None,
            namespace=f"bub-demo-{secrets.token_hex(4)}" if own_server else "bub",
            workspace=None,
            **SHORT_LEASE,
        )
        client = await stack.enter_async_context(connected(settings))
        info = await client.server.info()
        if own_server:
            stack.push_async_callback(_sweep, client, settings.namespace)
        logs = Path(stack.enter_context(TemporaryDirectory(prefix="bub-demo-")))
        workers = tuple(_start_worker(number, settings, logs) for number in range(1, WORKERS + 1))
        for worker in workers:
            stack.callback(worker.end)
        for worker in workers:
            await worker.ready()
        yield Stage(
            settings, client, workers, f"{info.name} {info.version}", embedded.socket_path if embedded else None
        )


def _start_worker(number: int, settings: Settings, logs: Path) -> WorkerProcess:
    log = logs / f"worker-{number}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own program
            tied_command([sys.executable, "-m", "bub_redis.cli", "worker", _AGENT]),
            env=os.environ | _environment(settings),
            # Found from there whether installed or not, and before anything of that name in the user's folder.
            cwd=Path(bub_redis.__file__).parent.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the demo, which ends its workers itself.
            start_new_session=True,
        )
    return WorkerProcess(number, process, log)


def _environment(settings: Settings) -> dict[str, str]:
    """The variables that make a worker part of the demo; an empty one is as good as none."""
    return {
        "BUB_REDIS_URL": settings.queue_address,
        "BUB_TAPE_URL": "" if settings.tape_url is None else settings.tape_address,
        "BUB_NAMESPACE": settings.namespace,
        "BUB_WORKSPACE": "",
    } | {f"BUB_{name.upper()}": str(value) for name, value in SHORT_LEASE.items()}


async def _sweep(client: TurnClient, namespace: str) -> None:
    """Remove the demo's keys, ours and arq's, from a server that is not ours."""
    patterns = (f"{namespace}:*", f"{ARQ_JOB_PREFIX}{QueueKeys(namespace).job_prefix}*")
    for server in {client.server, client.store.server}:
        for pattern in patterns:
            await _remove(server, pattern)


async def _remove(server: RedisServer, pattern: str) -> None:
    with server.outages():
        found = [key async for key in server.commands.scan_iter(match=pattern, count=_SWEPT_AT_ONCE)]
        for start in range(0, len(found), _SWEPT_AT_ONCE):
            await server.commands.unlink(*found[start : start + _SWEPT_AT_ONCE])
