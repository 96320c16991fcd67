"""The process's own streams: what becomes of a command whose output cannot be written."""

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, cast

_OUTPUT, _ERRORS = 1, 2


class OutputLost(Exception):
    """What a command says can no longer be written. No OSError: at some of those rich and typer end the process."""

    def __init__(self, cause: OSError) -> None:
        reason = "stdout is closed" if cause.errno == errno.EBADF else cause.strerror
        super().__init__(f"the output cannot be written ({reason})")
        self.reader_left = isinstance(cause, BrokenPipeError)
        """Whether only the reader of a pipe went away, who knows."""


class _Output(io.TextIOWrapper):
    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._lost(error)

    def writelines(self, lines: Sequence[str], /) -> None:  # type: ignore[override]
        self.write("".join(lines))

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> NoReturn:
        # What is left in the buffer would fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        raise OutputLost(error) from None


def prepare_streams() -> None:
    """Let stdout raise OutputLost where it cannot be written, and both streams take any character and be there."""
    if sys.stderr is None:
        sys.stderr = _nowhere(_ERRORS, os.O_WRONLY)
    if sys.stdout is None:
        # Open for reading: a command that says nothing works, and any other finds out.
        sys.stdout = _nowhere(_OUTPUT, os.O_RDONLY)
    # A locale without UTF-8 must not turn an answer into a traceback.
    sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    before = cast(io.TextIOWrapper, sys.stdout)
    options: dict[str, Any] = {
        "encoding": before.encoding,
        "line_buffering": before.line_buffering,
        "write_through": before.write_through,
    }
    # Taken out of the stream before, which would close it.
    sys.stdout = _Output(before.detach(), errors="backslashreplace", **options)


def _nowhere(descriptor: int, mode: int) -> io.TextIOWrapper:
    # In the closed one's place, which else a socket would get.
    opened = os.open(os.devnull, mode)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    return open(descriptor, "w", encoding="utf-8", closefd=False)
