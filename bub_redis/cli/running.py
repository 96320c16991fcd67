"""Running what a command does on an event loop, so that every way out cleans up."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

import typer

from bub_redis.cli.exits import ExitCode

_STOPS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.TERMINATED,
}


def run(work: Coroutine[Any, Any, ExitCode | None]) -> None:
    """Run a command's work to its end; Ctrl-C, SIGTERM and a closed terminal bring it about by cancelling.

    Raises typer.Exit with the code that the work returns, or that of how it was stopped.
    """
    try:
        code = asyncio.run(_stoppable(work))
    except BrokenPipeError:
        # Of stderr: stdout raises OutputLost.
        code = ExitCode.BROKEN_PIPE
    if code:
        raise typer.Exit(code)


async def _stoppable(work: Coroutine[Any, Any, ExitCode | None]) -> ExitCode | None:
    # Cancelled from the loop: asyncio's own handler of Ctrl-C may run in the middle of the task's step, and
    # `asyncio.timeout` then takes the cancellation for its own and swallows it.
    task = asyncio.ensure_future(work)
    stops: list[ExitCode] = []

    def stop(code: ExitCode) -> None:
        stops.append(code)
        task.cancel()

    loop = asyncio.get_running_loop()
    for signum, code in _STOPS.items():
        # nohup has the signal ignored, and so it stays.
        if signal.getsignal(signum) is not signal.SIG_IGN:
            loop.add_signal_handler(signum, stop, code)
    try:
        return await task
    except asyncio.CancelledError:
        if stops:
            return stops[0]
        raise
