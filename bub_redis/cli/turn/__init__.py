"""`bub-redis turn`: send turns and watch them."""

from typing import Annotated

import typer

from bub_redis.cli.arguments import AsJson, Session, Text, TurnId, json_object, text_or_stdin
from bub_redis.cli.running import run

app = typer.Typer(
    name="turn",
    help="Send turns and watch them: a turn is one message of a user and all that answers it.",
    no_args_is_help=True,
)


@app.command()
def enqueue(
    session: Session,
    text: Text,
    turn_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Your id for the turn: the same id again is the same turn (default: random)."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="PROVIDER:MODEL", help="The model for this turn (default: the worker's).")
    ] = None,
    options: Annotated[
        str | None, typer.Option(metavar="JSON", help="Options of every model call, e.g. '{\"temperature\": 0}'.")
    ] = None,
    state: Annotated[str | None, typer.Option(metavar="JSON", help="What the agent's tools share.")] = None,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="What is recorded on the tape.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Show what happens until the turn has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put a turn behind the others of its session; a worker runs it.

    With --follow the exit code is 1 if the turn failed or was cancelled.
    """
    from bub_redis.cli.turn.enqueue import Sent, enqueue_turn

    sent = Sent(
        session,
        text_or_stdin(text),
        turn_id,
        model,
        json_object(options, "--options"),
        json_object(state, "--state"),
        json_object(metadata, "--metadata"),
    )
    run(enqueue_turn(sent, follow=follow, as_json=as_json))


@app.command()
def follow(
    session: Session,
    turn: TurnId,
    after: Annotated[
        str | None, typer.Option(metavar="FRAME", help="Go on behind this frame: an id that --json showed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a turn live until it has ended; one that ended long ago is shown from its tape.

    The exit code is 1 if the turn failed or was cancelled.
    """
    from bub_redis.cli.turn.follow import follow_named

    run(follow_named(session, turn, after=after, as_json=as_json))


@app.command()
def result(
    session: Session,
    turn: TurnId,
    wait: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Wait so long for the end of the turn.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print the answer of a turn that has ended; with --json its receipt as well.

    The exit code is 1 if it failed, was cancelled, or has not ended, and 3 if its tape was reset since.
    """
    from bub_redis.cli.turn.result import print_result

    run(print_result(session, turn, wait_s=wait, as_json=as_json))


@app.command()
def cancel(session: Session, turn: TurnId, as_json: AsJson = False) -> None:
    """Cancel a turn. May be repeated.

    One that never started leaves nothing on the tape; of a running one, what it did so far is kept there. The exit code
    is 1 if it had ended in another way before.
    """
    from bub_redis.cli.turn.cancel import cancel_turn

    run(cancel_turn(session, turn, as_json=as_json))


@app.command()
def steer(
    session: Session,
    turn: TurnId,
    text: Text,
    steer_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Your id for the message: the same id again is the same message."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a message into a turn that has not ended: the model sees it at its next call.

    One that comes too late becomes a turn of its own; it is never lost.
    """
    from bub_redis.cli.turn.steer import steer_turn

    run(steer_turn(session, turn, text_or_stdin(text), steer_id=steer_id, as_json=as_json))


@app.command("list")
def list_(
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Only this session, with its last turns that ended.")
    ] = None,
    last: Annotated[int, typer.Option(metavar="N", min=0, help="How many ended turns of the session to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """List turns: those of all sessions that have not ended, or one session's."""
    from bub_redis.cli.turn.listing import list_turns

    run(list_turns(session, last=last, as_json=as_json))
