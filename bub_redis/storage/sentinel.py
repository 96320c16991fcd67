"""Sentinels, asked which server is the primary of a service now.

The protocol: https://redis.io/docs/latest/develop/reference/sentinel-clients/
"""

from collections.abc import Sequence
from typing import Any

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bub_redis.storage.address import split_sentinels
from bub_redis.storage.connection import Locate, PatientConnection, Pool

_ANSWER_S = 0.5
"""How long one sentinel is waited for: the next one knows as much."""


class NoSentinel(RedisError):
    """None of them answers. No ConnectionError, which each connection would repeat for each of its tries."""


class UnknownService(RedisError):
    """Those that answer know no service of this name."""


def located(url: str, **options: Any) -> tuple[str, Locate | None]:
    """The URL of a server, and where it names sentinels, how they are asked for the server each time.

    `options` are those of the connections to them. Raises ValueError for a URL that is none.
    """
    if (found := split_sentinels(url)) is None:
        return url, None
    server_url, urls, service = found
    return server_url, Sentinels(urls, service, **options).primary


class Sentinels:
    """The sentinels of one service."""

    def __init__(self, urls: Sequence[str], service: str, **options: Any) -> None:
        self._pools = [
            Pool.from_url(
                url, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S, retry=Retry(NoBackoff(), 0), **options
            )
            for url in urls
        ]
        self._service = service

    async def primary(self) -> tuple[str, int]:
        """Host and port of the primary, as the first that answers tells. Raises NoSentinel, UnknownService."""
        refusal: RedisError = NoSentinel("no sentinel answers")
        for pool in [*self._pools]:
            connection: PatientConnection = pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                (told,) = await connection.ask([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)])
            except AuthenticationError as error:
                refusal = error
                continue
            except (RedisConnectionError, RedisTimeoutError, OSError):
                continue
            finally:
                await connection.disconnect(nowait=True)
            if isinstance(told, list):
                # Asked first from now on.
                self._pools.remove(pool)
                self._pools.insert(0, pool)
                host, port = told
                return host.decode(), int(port)
            refusal = told if isinstance(told, RedisError) else UnknownService(self._service)
        raise refusal
