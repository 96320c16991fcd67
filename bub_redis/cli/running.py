"""Running what a command does on an event loop, so that every way out cleans up."""

import asyncio
import signal
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import typer

from bub_redis.cli.exits import ExitCode

_Result = TypeVar("_Result")
_Stop = TypeVar("_Stop")
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
        code = asyncio.run(stoppable(work, _STOPS))
    except BrokenPipeError:
        # Of stderr: stdout raises OutputLost.
        code = ExitCode.BROKEN_PIPE
    if code:
        raise typer.Exit(code)


async def stoppable(work: Coroutine[Any, Any, _Result], stops: Mapping[signal.Signals, _Stop]) -> _Result | _Stop:
    """What the work returns, or what `stops` has for the signal at which it was cancelled."""
    # Cancelled from the loop: asyncio's own handler of Ctrl-C may run in the middle of the task's step, and
    # `asyncio.timeout` then takes the cancellation for its own and swallows it.
    task = asyncio.ensure_future(work)
    stopped: list[_Stop] = []

    def stop(by: _Stop) -> None:
        stopped.append(by)
        task.cancel()

    loop = asyncio.get_running_loop()
    for signum, by in stops.items():
        # nohup has the signal ignored, and so it stays.
        if signal.getsignal(signum) is not signal.SIG_IGN:
            loop.add_signal_handler(signum, stop, by)
    try:
        return await task
    except asyncio.CancelledError:
        if stopped:
            return stopped[0]
        raise
