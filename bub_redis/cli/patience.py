"""Waiting for a server that is away."""

import asyncio
import time

from bub_redis.cli.output import note
from bub_redis.errors import Outage

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class Patience:
    """Outlives outages: says once that the server is away, and waits a little longer each time."""

    def __init__(self, limit_s: float | None) -> None:
        """`limit_s`: how long one outage is borne; None for any length."""
        self._limit_s = limit_s
        self._pause_s = _FIRST_PAUSE_S
        self._away_since: float | None = None

    async def wait(self, outage: Outage) -> None:
        """Wait before the next try. Raises `outage` once it has lasted too long."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            note(f"waiting for the server: {outage}")
        elif self._limit_s is not None and now - self._away_since > self._limit_s:
            raise outage
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)

    def over(self) -> None:
        """The server answers. May be repeated."""
        self._away_since, self._pause_s = None, _FIRST_PAUSE_S
