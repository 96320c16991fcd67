"""Logging: one line an event, JSON when not on a terminal; ids and counts only, never what users or models said."""

import logging
import sys

import structlog


def configure_logging(*, level: int = logging.INFO) -> None:
    """Send structlog and the standard library's logging to stderr in one form. Called once, at the process edge."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    terminal = sys.stderr.isatty()
    # Plain tracebacks: pretty ones show local variables, which hold what users said.
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if terminal
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *([] if terminal else [structlog.processors.format_exc_info]),
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    # arq tells every job's start and end; the runner says the same with session, turn and attempt.
    logging.getLogger("arq").setLevel(logging.WARNING)
    # Other libraries speak at their own INFO of requests, whose URLs may hold user data.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
