"""The command line, `bub-redis`: for people by default, `--json` for programs, exit codes as `exits` lists them."""

from bub_redis.cli.app import main

__all__ = ["main"]
