"""`bub-redis turn`: send turns and watch them."""

from typing import Annotated

import typer

from bub_redis.cli.running import run

app = typer.Typer(name="turn", help="Send turns and watch them.", no_args_is_help=True)


@app.command()
def enqueue(
    session: Annotated[
        str,
        typer.Argument(metavar="SESSION", help="The session, e.g. customer-42: its turns run one by one, in order."),
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the user says.")],
    turn_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Your id for the turn: the same id again is the same turn (default: random)."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="PROVIDER:MODEL", help="The model for this turn (default: the worker's).")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Show what happens until the turn has ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the turn, then a line per frame.")] = False,
) -> None:
    """Put a turn behind the others of its session; a worker runs it.

    With --follow the exit code is 1 if the turn failed or was cancelled.
    """
    from bub_redis.cli.turn.enqueue import enqueue_turn

    run(enqueue_turn(session, text, turn_id=turn_id, model=model, follow=follow, as_json=as_json))
