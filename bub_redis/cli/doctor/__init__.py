"""`bub-redis doctor`: whether servers, rights and settings keep the promise."""

from bub_redis.cli.arguments import AsJson
from bub_redis.cli.running import run


def doctor(as_json: AsJson = False) -> None:
    """Check servers, rights and settings: what is wrong, and what to do about it. Changes nothing.

    The exit code is 5 if anything stands in the way of the promise; warnings alone end with 0.
    """
    from bub_redis.cli.doctor.report import examine

    run(examine(as_json=as_json))
