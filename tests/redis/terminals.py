"""A command on a terminal: typed to, and looked at."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"


class Terminal:
    """A pseudo-terminal of 80 columns that `bub-redis` runs on."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self.shown = ""

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._descriptor, keys.encode())

    def wait_for(self, text: str, *, within_s: float = 20.0) -> None:
        """Return once `text` has appeared behind what was waited for before."""
        deadline = time.monotonic() + within_s
        while text not in self.shown:
            assert time.monotonic() < deadline and self.look(), f"{text!r} has not appeared in {self.shown!r}"
        self.shown = self.shown.partition(text)[2]

    def look(self) -> bool:
        """Take in what is shown now, or within half a second; False once nothing can come any more."""
        if not select.select([self._descriptor], [], [], 0.5)[0]:
            return True
        try:
            self.shown += os.read(self._descriptor, 65536).decode(errors="replace")
        except OSError:  # the other side is closed
            return False
        return True

    def wait(self) -> int:
        """The exit code, once the command has ended."""
        while self.process.poll() is None:
            self.look()
        while self.look() and select.select([self._descriptor], [], [], 0)[0]:
            pass
        return self.process.returncode


@contextmanager
def on_terminal(*arguments: str, env: Mapping[str, str], cwd: Path | None = None) -> Iterator[Terminal]:
    """`bub-redis` with these arguments on a terminal of its own, killed at the end."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "bub_redis.cli", *arguments],
        env={**env, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        cwd=cwd,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        # With a session of its own the terminal is its controlling one, from which Ctrl-C comes.
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
