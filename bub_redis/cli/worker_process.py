"""A worker as a process of its own that ends with the command that started it."""

import json
import os
import subprocess
import sys
from asyncio import sleep
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import bub_redis
from bub_redis.cli.exits import ExitCode
from bub_redis.errors import BubError, ConfigError
from bub_redis.testing.tied import tied_command

_START_LIMIT_S: Final = 20.0
_STOP_LIMIT_S: Final = 5.0
_PROBE_INTERVAL_S: Final = 0.02


class WorkerFailed(BubError):
    """A worker could not start, or ended by itself."""


class WorkerMisused(WorkerFailed, ConfigError):
    """A worker could not start, and never will: its agent or a setting is wrong."""


@dataclass
class WorkerProcess:
    """A `bub-redis worker`, its log in a file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    id: str = ""
    """What the worker calls itself, once it is ready."""
    lacks_model: bool = False
    """Whether its agent has no model, once it is ready: turns must name theirs."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    async def ready(self) -> None:
        """Wait until it takes turns. Raises WorkerFailed with what it said if it ends instead."""
        for _ in range(int(_START_LIMIT_S / _PROBE_INTERVAL_S)):
            for line in self._lines():
                self.lacks_model |= line.get("event") == "agent.has_no_model"
                if line.get("event") == "worker.ready":
                    self.id = line["worker"]
                    return
            self.check()
            await sleep(_PROBE_INTERVAL_S)
        raise WorkerFailed(f"{self} is not ready after {_START_LIMIT_S:g} s: {self._last_words()}")

    def check(self) -> None:
        """Raise WorkerFailed with what it said if it has ended."""
        if self.process.poll() is not None:
            said = self._last_words().removeprefix("error: ")
            kind = WorkerMisused if self.process.returncode == ExitCode.USAGE else WorkerFailed
            raise kind(f"{self} ended with code {self.process.returncode}: {said}")

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


def start_worker(name: str, log: Path, agent: str | None, variables: Mapping[str, str]) -> WorkerProcess:
    """Start a worker in the current folder, for an agent there or for what `variables` or the settings name."""
    # Ours are found first and the current folder last: the user's own `worker.py` may be in it.
    ours = str(Path(bub_redis.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", "bub_redis.cli", "worker", *([] if agent is None else [agent])]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own program
            tied_command(command),
            env=os.environ | {"PYTHONPATH": path} | dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the command, which ends its workers itself.
            start_new_session=True,
        )
    return WorkerProcess(name, process, log)
