"""References: real software in environments of their own, driven by a small script that answers in JSON lines."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bub_redis.testing.tied import tied_command

_SCRIPTS = Path(__file__).resolve().parent / "references"
_LINE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Software:
    """What is installed, and the script that drives it."""

    requirements: tuple[str, ...]
    script: str
    python: tuple[int, int] = (3, 11)
    """The oldest Python that it runs on."""


SOFTWARE = {
    "arq": Software(("arq==0.28.0", "hiredis"), "arq_side.py"),
    # SAQ imports typing_extensions without asking for it.
    "saq": Software(("saq[hiredis,redis]>=0.26,<0.27", "typing_extensions"), "saq_side.py"),
    "openai-agents": Software(("openai-agents[redis]>=0.24,<0.25", "hiredis"), "session_side.py"),
    "bub": Software(("bub==0.6.0a3",), "bub_side.py", python=(3, 12)),
}


class Unavailable(Exception):
    """This machine cannot run a reference; the message says why."""


class Reference:
    """A running driver."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def started(cls, name: str, folder: Path, url: str) -> AsyncIterator["Reference"]:
        """The driver of `name` on the server at `url`, ended with the block. Raises Unavailable."""
        python = await installed(name, folder)
        with TemporaryDirectory(prefix="bub-bench-") as own:
            process = await asyncio.create_subprocess_exec(
                *tied_command([str(python), str(_SCRIPTS / SOFTWARE[name].script), url]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                limit=_LINE_BYTES,
                # What it leaves behind goes with this folder.
                env=os.environ | {"TMPDIR": own},
                start_new_session=True,
            )
            try:
                yield cls(process)
            except BaseException:
                await killed(process)
                raise
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()

    async def ask(self, what: str, **arguments: Any) -> Any:
        """Have the driver do something, and return its answer. Raises RuntimeError if it died; its error is shown."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **arguments}).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a reference ended with code {await self._process.wait()} when asked to {what}")
        return json.loads(line)


def versions(folder: Path) -> dict[str, str]:
    """What is installed of each reference that is there."""
    found = {}
    for name, software in SOFTWARE.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            continue
        packages = [
            requirement.partition("[")[0].partition("=")[0].partition(">")[0] for requirement in software.requirements
        ]
        code = "import sys, importlib.metadata as m; print(*(f'{p} {m.version(p)}' for p in sys.argv[1:]), sep=', ')"
        wanted = [package for package in (packages[0], "redis") if name != "bub" or package != "redis"]
        told = subprocess.run([python, "-c", code, *wanted], capture_output=True, text=True, check=False)  # noqa: S603
        found[name] = told.stdout.strip()
    return found


async def killed(process: asyncio.subprocess.Process) -> None:
    """Kill a process of ours, and wait until it is gone; may be repeated."""
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def output_of(process: asyncio.subprocess.Process) -> bytes:
    """What a process of ours says until it ends; it is killed if nobody waits for it any more."""
    try:
        said, _ = await process.communicate()
    except BaseException:
        await killed(process)
        raise
    return said


async def installed(name: str, folder: Path) -> Path:
    """The Python of the reference's environment, which is made on first use. Raises Unavailable."""
    software = SOFTWARE[name]
    python = folder / name / "bin" / "python"
    mark = folder / name / ".installed"
    wanted = "\n".join(software.requirements)
    if mark.exists() and mark.read_text(encoding="utf-8") == wanted:
        return python
    base = _python(software.python)
    if base is None:
        oldest = ".".join(map(str, software.python))
        raise Unavailable(f"{name} needs Python {oldest} or newer, and there is none on this machine's PATH")
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", *software.requirements]
    for command in ([base, "-m", "venv", "--clear", str(folder / name)], [str(python), *install]):
        code, said = await _run(command)
        if code:
            raise Unavailable(f"{name} could not be installed: {_last_line(said)}")
    mark.write_text(wanted, encoding="utf-8")
    return python


async def _run(command: Sequence[str]) -> tuple[int | None, str]:
    """Run a program; its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        *tied_command(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    said = await output_of(process)
    return process.returncode, said.decode(errors="replace").strip()


def _last_line(said: str) -> str:
    return (said.splitlines() or ["it said nothing"])[-1].removeprefix("ERROR: ")


def _python(oldest: tuple[int, int]) -> str | None:
    """A Python that is new enough: the one that runs this, or one on PATH."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    for minor in range(14, oldest[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        # A name on PATH may be a stand-in for a Python that is not there.
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:  # noqa: S603
            return found
    return None
