"""The commands put together, and the edge of the process: every expected error is one line on stderr and a code.

What a command does is in a module of its own, imported when the command runs: help and completion wait for nothing
that they do not need.
"""

import re
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from bub_redis.cli import chat, config, demo, doctor, exits, queue, tape, turn, worker
from bub_redis.cli.streams import OutputLost, prepare_streams
from bub_redis.errors import BubError

_PARSER = re.compile(", unable to parse .*")
"""What a parser adds to a problem, and nobody needs who writes an option."""


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"bub-redis {version('bub-redis')}")
        raise typer.Exit


app = typer.Typer(
    name="bub-redis",
    help="Agents on Redis Streams: what a turn did is on its session's tape once, whole and in order, or not at all.",
    epilog=exits.SUMMARY,
    no_args_is_help=True,
    # Rich's tracebacks show local variables, which hold what users said.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


app.command()(demo.demo)
app.command()(chat.chat)
app.command()(worker.worker)
app.add_typer(turn.app)
app.add_typer(tape.app)
app.add_typer(queue.app)
app.command()(doctor.doctor)
app.add_typer(config.app)


def main() -> NoReturn:
    """Run the command line and exit with one of the codes in `exits`."""
    prepare_streams()
    try:
        code = execute(sys.argv[1:])
        # Here, since at exit nobody could say what is wrong with it.
        sys.stdout.flush()
    except OutputLost as lost:
        code = exits.ExitCode.BROKEN_PIPE if lost.reader_left else exits.ExitCode.FAILED
        if not lost.reader_left:
            _complain(str(lost))
    except BrokenPipeError:
        # Of stderr: stdout raises OutputLost.
        code = exits.ExitCode.BROKEN_PIPE
    sys.exit(code)


def execute(arguments: Sequence[str]) -> int:
    """Run one command in this process; its exit code. Raises OutputLost."""
    try:
        code = app(list(arguments), prog_name="bub-redis", standalone_mode=False)
    except typer.TyperException as error:
        # Without any argument the help is printed already, and the message is empty.
        if problem := error.format_message():
            problem = _PARSER.sub("", problem.replace(": Input should be", ": it must be"))
            _complain(f"{problem.rstrip('.')}; see `{_command(error, arguments)} --help`")
        return exits.ExitCode.USAGE
    except BubError as error:
        _complain(str(error))
        return exits.exit_code(error)
    return code or exits.ExitCode.OK


def _command(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """The command that was used wrongly: what the error knows, else as far as the arguments name one."""
    if context := getattr(error, "ctx", None):
        return str(context.command_path)
    names, commands = ["bub-redis"], typer.main.get_group(app).commands
    for argument in arguments:
        if argument not in commands:
            break
        names.append(argument)
        commands = getattr(commands[argument], "commands", {})
    return " ".join(names)


def _complain(problem: str) -> None:
    print(f"error: {' '.join(problem.split())}", file=sys.stderr)
