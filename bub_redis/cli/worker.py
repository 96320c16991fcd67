"""`bub-redis worker`: a process that runs turns."""

from typing import Annotated

import typer

from bub_redis.cli.running import run


def worker(
    agent: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:ATTRIBUTE",
            help="An Agent, or a function that returns one (default: BUB_AGENT, else a plain agent on BUB_MODEL).",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Use a server even if its eviction policy may drop tapes (BUB_FORCE).")
    ] = False,
) -> None:
    """Run turns of your agent until told to stop by Ctrl-C or SIGTERM.

    Start as many as you like, on as many machines as you like; each runs up to BUB_MAX_JOBS turns at once. The module
    is looked for in the current folder first: `bub-redis worker shop:agent` runs `agent` of shop.py.
    """
    from bub_redis.cli.embedded import command_settings
    from bub_redis.cli.start import start
    from worker.telemetry import configure_logging

    overrides = {"agent": agent, "force": force or None}
    configure_logging()
    run(start(command_settings(**{name: value for name, value in overrides.items() if value is not None})))
