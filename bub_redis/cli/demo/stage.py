"""Where the demo plays: a server, worker processes with a short lease, and nothing of it left in the end."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bub_redis.cli.connect import connected
from bub_redis.cli.demo.sweep import sweep
from bub_redis.cli.worker_process import WorkerProcess, start_worker
from bub_redis.errors import BubError
from bub_redis.settings import Settings, load_settings
from bub_redis.testing import EmbeddedServer
from bub_redis.turns import TurnClient

WORKERS: Final = 2
SHORT_LEASE: Final = {"lease_s": 1.5, "beat_s": 0.4, "reconcile_s": 0.1}
"""So that nobody has to wait for long until a killed worker's turn runs again."""
_AGENT = "bub_redis.cli.demo.agent:agent"


class DemoFailed(BubError):
    """The demo could not play to its end."""


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

    Raises what `connected` raises, ConfigError without the embedded server, WorkerFailed if a worker does not start.
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
        ids: list[str] = []
        if own_server:
            stack.push_async_callback(sweep, client, settings.namespace, ids)
        logs = Path(stack.enter_context(TemporaryDirectory(prefix="bub-demo-")))
        workers = tuple(
            start_worker(f"worker {number}", logs / f"worker-{number}.log", _AGENT, _environment(settings))
            for number in range(1, WORKERS + 1)
        )
        for worker in workers:
            stack.callback(worker.end)
        for worker in workers:
            await worker.ready()
            ids.append(worker.id)
        yield Stage(
            settings, client, workers, f"{info.name} {info.version}", embedded.socket_path if embedded else None
        )


def _environment(settings: Settings) -> dict[str, str]:
    """The variables that make a worker part of the demo; an empty one is as good as none."""
    return {
        "BUB_REDIS_URL": settings.queue_address,
        "BUB_TAPE_URL": "" if settings.tape_url is None else settings.tape_address,
        "BUB_NAMESPACE": settings.namespace,
        "BUB_WORKSPACE": "",
    } | {f"BUB_{name.upper()}": str(value) for name, value in SHORT_LEASE.items()}
