"""The command line, `bub-redis`: for people by default, `--json` for programs, exit codes as `exits` lists them."""

import signal
import sys
from types import FrameType
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line and exit with one of the codes in `exits`.

    Told to stop while it is still being imported, it ends with their code as well and says nothing.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # By a handler: as the first process of a container it would not be told at all.
        signal.signal(signal.SIGTERM, _terminated)
    try:
        from bub_redis.cli import app

        app.main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _terminated(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)
