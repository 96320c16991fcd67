"""Where a conversation takes place: a server that is there, or one of chat's own with a worker beside it."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bub_redis.cli.connect import connected
from bub_redis.cli.embedded import command_settings, listens, running_url, serving
from bub_redis.cli.output import note
from bub_redis.cli.waiting import NO_WORKER
from bub_redis.cli.worker_process import WorkerProcess, start_worker
from bub_redis.errors import ConfigError, InvalidInput, Outage
from bub_redis.settings import Settings, load_settings, variable
from bub_redis.turns.workers import Workers
from worker.load import check_model

_ECHO = "bub_redis.cli.chat.echo:agent"


class HostLeft(Outage):
    """The chat whose server this one used has left, and ended it."""


@dataclass
class House:
    """The servers, and the worker where chat runs it."""

    settings: Settings
    model: str | None = None
    """The model that each turn asks for; None for the workers' own."""
    worker: WorkerProcess | None = None
    host: Path | None = None
    """The home whose server another chat started and ends; None for one that stays."""
    told: str = NO_WORKER
    """What need not be said of why a turn waits: it was said before, or chat starts its own worker again."""
    _agent: str | None = None
    _logs: Path | None = None

    async def start_worker(self) -> None:
        """Start the worker, in place of one that ended. Raises WorkerFailed; ConfigError for an agent without model."""
        if self._logs is None:
            return
        variables = {variable("redis_url"): self.settings.queue_address}
        if self.model is not None:
            variables[variable("model")] = self.model
        self.worker = start_worker("the worker", self._logs / "worker.log", self._agent, variables)
        await self.worker.ready()
        if self.worker.lacks_model:
            raise ConfigError(f"{self._agent} has no model; name one by --model PROVIDER:MODEL, or in BUB_MODEL")

    def check_host(self) -> None:
        """Raise HostLeft if the server was another chat's and has ended with it."""
        if self.host is not None and running_url(self.host) is None:
            raise HostLeft("the chat that started the server has left and ended it; start chat again to go on")

    def end(self) -> None:
        """End the worker; may be repeated."""
        if self.worker is not None:
            self.worker.end()


@contextmanager
def open_house(*, model: str | None, agent: str | None) -> Iterator[House]:
    """Find the servers, or start one and a worker; what was started ends with the block. Says what it did in one line.

    Raises ConfigError, InvalidInput, Outage, ServerUnfit, WorkerFailed.
    """
    if model is not None:
        check_model(model)
    settings = command_settings()
    if not settings.model_fields_set.isdisjoint({"redis_url", "tape_url"}) or listens(settings.queue_address):
        yield _found(settings, model, agent)
        return
    with ExitStack() as stack:
        url = stack.enter_context(serving(settings.home))
        if url is None:
            yield _found(command_settings(), model, agent)
            return
        house = House(
            load_settings(redis_url=url),
            model,
            _agent=agent or settings.agent or (None if model or settings.model else _ECHO),
            _logs=Path(stack.enter_context(TemporaryDirectory(prefix="bub-chat-"))),
        )
        stack.callback(house.end)
        asyncio.run(house.start_worker())
        scripted = "; no model is set (BUB_MODEL), so a script answers" if house._agent == _ECHO else ""
        data = _short(settings.home / "server")
        note(f"started a server, data in {data}, and a worker: both end with this chat{scripted}")
        yield house


async def _workers(settings: Settings) -> int:
    async with connected(settings) as client:
        return len(await Workers(client.queue).alive())


def _found(settings: Settings, model: str | None, agent: str | None) -> House:
    workers = asyncio.run(_workers(settings))
    if agent is not None:
        raise InvalidInput(
            "--agent is for the worker that chat starts; on a server that is there, start your own workers"
        )
    if not workers:
        note(NO_WORKER)
    host = settings.home if settings.queue_address == running_url(settings.home) else None
    if host is not None:
        note(f"uses the server that another chat started, data in {_short(host / 'server')}: it ends with that chat")
    return House(settings, model, host=host, told="" if workers else NO_WORKER)


def _short(path: Path) -> str:
    """A path as a person writes it."""
    home = Path.home()
    return str(Path("~") / path.relative_to(home)) if path.is_relative_to(home) else str(path)
