"""`bub-redis tape`: read what happened."""

from typing import Annotated

import typer

from bub_redis.cli.running import run

app = typer.Typer(name="tape", help="Read what happened in a session.", no_args_is_help=True)


@app.command()
def show(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session, e.g. customer-42.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print an entry per line as JSON, whole.")] = False,
) -> None:
    """Show a session's tape, an entry per line.

    On a terminal long entries are cut to its width; in a pipe they are whole.
    """
    from bub_redis.cli.tape.show import show_tape

    run(show_tape(session, as_json=as_json))
