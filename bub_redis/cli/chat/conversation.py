"""A conversation: read a line, run it as a turn, show what happens, until the person leaves.

Each turn has an event loop and connections of its own; while the person thinks, nothing is open, so that no idle
connection can break and Ctrl-C is the terminal's own.
"""

import asyncio
import signal
import sys
from types import FrameType

from bub_redis.cli.chat.house import HostLeft, House, open_house
from bub_redis.cli.chat.lines import Left, piped_lines, typed_lines
from bub_redis.cli.chat.turn import ChatTurn
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal, note
from bub_redis.errors import BubError, InvalidInput
from bub_redis.tape import session_tape_name


def converse(session: str, *, model: str | None, agent: str | None) -> ExitCode:
    """Talk until the person leaves; what chat started ends with it.

    Raises what `open_house` raises, InvalidInput, and HostLeft if the server was another chat's, which left.
    """
    session_tape_name(session)
    if sys.stdin is None:
        raise InvalidInput("there is nobody to talk to: stdin is closed")
    _leave_at_sigterm()
    try:
        with open_house(model=model, agent=agent) as house:
            try:
                return _typed(house, session) if sys.stdin.isatty() else _piped(house, session)
            finally:
                _end_in_peace()
    except Left as left:
        return left.code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Of stderr: stdout raises OutputLost.
        return ExitCode.BROKEN_PIPE


def _typed(house: House, session: str) -> ExitCode:
    note(f"session {session}: Ctrl-C cancels a turn, Ctrl-D leaves")
    for line in typed_lines():
        try:
            _run(house, session, line)
        except HostLeft:
            raise
        except BubError as error:
            note(f"error: {error}")
    return ExitCode.OK


def _piped(house: House, session: str) -> ExitCode:
    completed = [_run(house, session, line) == "completed" for line in piped_lines()]
    return ExitCode.OK if all(completed) else ExitCode.FAILED


def _run(house: House, session: str, text: str) -> str:
    """Run one turn to its end; its status. Raises Left, and what ChatTurn.run raises."""
    try:
        return asyncio.run(ChatTurn(house, Terminal(), session, text).run())
    finally:
        # The loop took the signals, and gave them back as the system has them.
        _leave_at_sigterm()


def _end_in_peace() -> None:
    """Let no signal interrupt the end of what chat started."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)


def _leave_at_sigterm() -> None:
    def leave(_signum: int, _frame: FrameType | None) -> None:
        _end_in_peace()
        raise Left(ExitCode.TERMINATED)

    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, leave)
