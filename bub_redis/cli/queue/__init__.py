"""`bub-redis queue`: what waits, what died, and who works."""

from typing import Annotated

import typer

from bub_redis.cli.arguments import AsJson, Session, TurnId
from bub_redis.cli.running import run

app = typer.Typer(name="queue", help="See what waits, what died and who works. Without a command: all in numbers.")


@app.callback(invoke_without_command=True)
def overview(context: typer.Context, as_json: AsJson = False) -> None:
    """See what waits, what died and who works. Without a command: all in numbers."""
    if context.invoked_subcommand is None:
        from bub_redis.cli.queue.overview import show_overview

        run(show_overview(as_json=as_json))


@app.command()
def waiting(as_json: AsJson = False) -> None:
    """List the turns that have not ended, and why: what each waits for, or who runs it; blocked tapes first."""
    from bub_redis.cli.queue.waiting import list_waiting

    run(list_waiting(as_json=as_json))


@app.command()
def dead(
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many, the newest.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List turns that took their worker down too often and were ended for it; kept for seven days."""
    from bub_redis.cli.queue.dead import list_dead

    run(list_dead(limit, as_json=as_json))


@app.command()
def retry(session: Session, turn: TurnId, as_json: AsJson = False) -> None:
    """Send what a dead turn was asked once more, as a new turn `TURN~2`. May be repeated: the same turn."""
    from bub_redis.cli.queue.dead import retry_dead

    run(retry_dead(session, turn, as_json=as_json))
