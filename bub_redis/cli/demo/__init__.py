"""`bub-redis demo`: the whole thing in some seconds, measured on the tapes that it leaves."""

from bub_redis.cli.running import run


def demo() -> None:
    """Show everything in some seconds: turns on two workers, a worker killed, a tape read, all of it checked.

    Brings its own server, workers and model, and leaves nothing behind. With BUB_REDIS_URL it uses that server, under
    a namespace of its own that it removes again; with BUB_MODEL a real model. Exits with 0 only if every check holds.
    """
    from bub_redis.cli.demo.play import play

    run(play())
