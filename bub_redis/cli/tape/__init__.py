"""`bub-redis tape`: read what happened."""

from pathlib import Path
from typing import Annotated

import typer

from bub_redis.cli.arguments import AsJson, Session, json_object
from bub_redis.cli.running import run

Yes = Annotated[bool, typer.Option("--yes", help="Really: it cannot be undone.")]

app = typer.Typer(
    name="tape",
    help="Read what happened: a tape is all that happened in one session, in order, never rewritten.",
    no_args_is_help=True,
)


@app.command("ls")
def list_(as_json: AsJson = False) -> None:
    """List the tapes, those that changed last first."""
    from bub_redis.cli.tape.listing import list_tapes

    run(list_tapes(as_json=as_json))


@app.command()
def show(
    session: Session,
    after: Annotated[
        str | None, typer.Option(metavar="ANCHOR", help="Only what stands behind the latest anchor of this name.")
    ] = None,
    last: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the last N of these entries.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a session's tape, an entry per line.

    On a terminal long entries are cut to its width; in a pipe they are whole. With --json it is an export: every entry,
    whole, as `tape verify --file` reads it.
    """
    from bub_redis.cli.tape.show import show_tape

    run(show_tape(session, after=after, last=last, as_json=as_json))


@app.command()
def tail(
    session: Session,
    last: Annotated[int, typer.Option("--last", "-n", metavar="N", min=0, help="How many entries to begin with.")] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as entries are committed, until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the end of a session's tape, and with -f what comes next.

    With -f the session need not have a tape yet, and an outage of the server is waited for: nothing is missed, and
    nothing comes twice.
    """
    from bub_redis.cli.tape.tail import tail_session

    run(tail_session(session, last=last, follow=follow, as_json=as_json))


@app.command()
def info(session: Session, as_json: AsJson = False) -> None:
    """Show a tape in numbers, without reading it whole."""
    from bub_redis.cli.tape.info import show_info

    run(show_info(session, as_json=as_json))


@app.command()
def anchors(
    session: Session,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="How many, the newest.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List a tape's anchors: where the context of a model may begin."""
    from bub_redis.cli.tape.anchors import list_anchors

    run(list_anchors(session, limit=limit, as_json=as_json))


@app.command()
def handoff(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The anchor's name: any text that is not blank.")],
    state: Annotated[str | None, typer.Option(metavar="JSON", help="What the next context must know.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write an anchor: the context of the session's next turn begins behind it."""
    from bub_redis.cli.tape.handoff import write_handoff

    run(write_handoff(session, name, json_object(state, "--state") if state else None, as_json=as_json))


@app.command()
def reset(
    session: Session,
    yes: Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Also while a turn is open: it is cancelled first.")] = False,
) -> None:
    """Empty a tape and begin it anew with `session/start`. Export it before: nothing is kept.

    Refused while a turn of the session is open, unless forced.
    """
    from bub_redis.cli.tape.ending import reset_tape

    run(reset_tape(session, yes=yes, force=force))


@app.command()
def delete(session: Session, yes: Yes = False) -> None:
    """Remove a tape and everything with its name, for good. Refused while a turn of the session waits or is open."""
    from bub_redis.cli.tape.ending import delete_tape

    run(delete_tape(session, yes=yes))


@app.command()
def search(
    session: Session,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="What to find; case and accents' spelling do not matter.")
    ],
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many, the newest.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Find entries whose text holds TEXT, newest first: what was said, and what tools were asked and answered."""
    from bub_redis.cli.tape.search import search_tape

    run(search_tape(session, text, limit=limit, as_json=as_json))


@app.command()
def parked(session: Session, as_json: AsJson = False) -> None:
    """Show what workers did in turns that had been given to others meanwhile.

    Such work is never put on the tape; it is kept here for a while, for a person to look at.
    """
    from bub_redis.cli.tape.parked import show_parked

    run(show_parked(session, as_json=as_json))


@app.command()
def repair(
    session: Session,
    yes: Annotated[bool, typer.Option("--yes", help="Really: without it nothing is changed.")] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="S", min=0, help="Seconds to wait for a turn at work on the session.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Make a tape that refuses every write fit to be written again; without --yes, say what that would change.

    What its entries say is put back into the keys beside them. Entries and keys that are not bub-redis's are set aside,
    never thrown away. Entries that are gone stay gone. The exit code is 4 if there is something to repair, and 0 once
    there is nothing more.
    """
    from bub_redis.cli.tape.repair import repair_tape

    run(repair_tape(session, yes=yes, wait_s=wait, as_json=as_json))


@app.command()
def verify(
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="The session whose tape is checked as it stands.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check an export instead, from `tape show --json` or an archive."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove that a tape was not edited: redo the digest of every receipt.

    The digest it prints is that of the last receipt: compare it with the one that the sender got. The exit code is 4 if
    anything was edited, is missing or cannot be read.
    """
    from bub_redis.cli.tape.verify import verify_tape

    run(verify_tape(session, file, as_json=as_json))
