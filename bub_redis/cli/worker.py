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
) -> None:
    """Run turns of your agent until told to stop by Ctrl-C or SIGTERM."""
    from bub_redis.settings import load_settings
    from worker.telemetry import configure_logging
    from worker.worker import run_worker

    configure_logging()
    run(run_worker(load_settings() if agent is None else load_settings(agent=agent)))
