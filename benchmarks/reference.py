"""References: real software in environments of their own, driven by a small script that answers in JSON lines."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        python = await asyncio.to_thread(_installed, name, folder)
        process = await asyncio.create_subprocess_exec(
            python,
            str(_SCRIPTS / SOFTWARE[name].script),
            url,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            limit=_LINE_BYTES,
        )
        try:
            yield cls(process)
        finally:
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


def _installed(name: str, folder: Path) -> Path:
    """The Python of the reference's environment, which is made on first use."""
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
    folder.mkdir(exist_ok=True)
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", *software.requirements]
    for command in ([base, "-m", "venv", "--clear", str(folder / name)], [str(python), *install]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - names of ours
        if done.returncode:
            raise Unavailable(f"{name} could not be installed: {done.stderr.strip().splitlines()[-1:]}")
    mark.write_text(wanted, encoding="utf-8")
    return python


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
