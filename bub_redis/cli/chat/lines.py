"""What a person types, line by line, or what comes through a pipe."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import note

PROMPT = "> "
_WAKE_S = 0.2


class Left(Exception):
    """The person left otherwise than by Ctrl-D."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code)
        self.code = code


def typed_lines() -> Iterator[str]:
    """Lines from the terminal, with editing and history, until Ctrl-D. Raises Left after two Ctrl-C in a row."""
    with suppress(ImportError):
        # Its import alone gives `input` line editing, which knows how wide characters are.
        import readline  # noqa: F401
    interrupted = False
    while True:
        try:
            with _signals_noticed():
                line = input(PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            if interrupted:
                raise Left(ExitCode.INTERRUPTED) from None
            interrupted = True
            note("(Ctrl-C again, or Ctrl-D, leaves)")
            continue
        interrupted = False
        if line.strip():
            yield line


@contextmanager
def _signals_noticed() -> Iterator[None]:
    """Wake `input` up now and then: a signal that came just before it began to wait would else wait for a key."""
    before = signal.signal(signal.SIGALRM, lambda _signum, _frame: None)
    signal.setitimer(signal.ITIMER_REAL, _WAKE_S, _WAKE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def piped_lines() -> Iterator[str]:
    """Lines of stdin. Raises Left at Ctrl-C; bytes that are not UTF-8 come as U+FFFD."""
    try:
        for line in sys.stdin.buffer:
            if text := line.decode(errors="replace").strip():
                yield text
    except KeyboardInterrupt:
        raise Left(ExitCode.INTERRUPTED) from None
