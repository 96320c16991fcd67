"""Running what a command does on an event loop, so that every way out cleans up."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import typer

from bub_redis.cli.exits import ExitCode


def run(work: Coroutine[Any, Any, ExitCode | None]) -> None:
    """Run a command's work to its end, which SIGTERM and a closed terminal bring about like Ctrl-C: by cancelling.

    Raises typer.Exit with the code that the work returns, or that of how it was stopped.
    """
    try:
        code = asyncio.run(_stoppable(work))
        # Here, since at exit a reader that is gone would be a traceback.
        sys.stdout.flush()
    except asyncio.CancelledError:
        code = ExitCode.TERMINATED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.BROKEN_PIPE
    if code:
        raise typer.Exit(code)


async def _stoppable(work: Coroutine[Any, Any, ExitCode | None]) -> ExitCode | None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - for mypy: a coroutine runs in a task
    for signum in (signal.SIGTERM, signal.SIGHUP):
        # nohup has the signal ignored, and so it stays.
        if signal.getsignal(signum) is not signal.SIG_IGN:
            loop.add_signal_handler(signum, task.cancel)
    return await work
