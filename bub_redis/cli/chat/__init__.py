"""`bub-redis chat`: a conversation at the terminal."""

from typing import Annotated

import typer


def chat(
    session: Annotated[
        str, typer.Argument(metavar="[SESSION]", help="The session; it goes on where it ended.")
    ] = "chat",
    model: Annotated[
        str | None, typer.Option(metavar="PROVIDER:MODEL", help="The model to talk to (default: BUB_MODEL).")
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(metavar="MODULE:ATTRIBUTE", help="What the worker that chat starts runs (default: BUB_AGENT)."),
    ] = None,
) -> None:
    """Talk to an agent: answers as they come, and what its tools do.

    Ctrl-C cancels the running turn; a second one, or Ctrl-D, leaves. In a pipe every line is a turn, and the exit code
    is 1 if one of them did not complete.

    Where BUB_REDIS_URL is not set and no Redis runs here, it starts a server of its own, with its data in
    $BUB_HOME/server, and a worker, and ends both when it leaves.
    """
    from bub_redis.cli.chat.conversation import converse

    raise typer.Exit(converse(session, model=model, agent=agent))
