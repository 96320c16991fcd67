"""A URL that names sentinels leads to the primary of the moment."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from bub_redis.errors import ConfigError, Outage
from bub_redis.settings import Settings, load_settings
from bub_redis.storage import RedisServer
from bub_redis.storage.address import masked, split_sentinels
from bub_redis.testing import wait_until
from bub_redis.turns import TurnClient
from tests.redis.agents import agent
from tests.redis.audit import committed_turns
from tests.redis.cluster import free_port
from tests.redis.sentinel import Watched, watched
from tests.redis.workers import working

SOON = timedelta(seconds=40)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Watched]:
    """A primary and a replica, watched."""
    with watched(tmp_path) as found:
        yield found


@pytest.fixture
def settings(settings: Settings, servers: Watched) -> Settings:
    """All is on them; a commit is acknowledged when the replica has it."""
    found = load_settings(redis_url=servers.url)
    return settings.model_copy(
        update={"redis_url": found.redis_url, "wait_replicas": 1, "wait_replicas_s": 1.0, "waiting_grace_s": 0.5}
    )


async def test_turns_outlive_a_fail_over(settings: Settings, servers: Watched) -> None:
    """What was committed is there, and what waited goes on, on the server that took over."""
    alone = settings.model_copy(update={"wait_replicas": 0})
    async with TurnClient(alone) as client:
        async with working(settings, agent):
            first = await client.enqueue("customer", "before", turn_id="t1")
            assert (await client.result(first, timeout=SOON)).status == "completed"
        second = await client.enqueue("customer", "after", turn_id="t2")
        old = servers.primary
        await wait_until(lambda: replicated(client), "the replica to have all")
        old.kill()
        await wait_until(lambda: servers.primary is not old, "the replica to take over", timeout_s=20)
        async with working(alone, agent):
            await wait_until(lambda: completed(client, second.tape, "t2"), "the turn to go on", timeout_s=20)
        assert await committed_turns(client.store, "customer", {"t1": "before", "t2": "after"}) == ["t1", "t2"]


async def replicated(client: TurnClient) -> bool:
    """Whether the replica has what this client wrote."""
    return bool(await client.server.commands.wait(1, 100))


async def completed(client: TurnClient, tape: str, turn: str) -> bool:
    try:
        return await client.store.committed(tape, turn) is not None
    except Outage:
        return False


async def test_a_replica_that_is_named_as_the_primary_is_not_written_to(servers: Watched) -> None:
    """A sentinel that has not heard of a change yet."""
    (_, primary), (_, replica) = servers.servers
    named = replica

    async def locate() -> tuple[str, int]:
        return "127.0.0.1", named

    async with RedisServer(servers.url) as server:
        server.commands.connection_pool.connection_kwargs["locate"] = locate
        with pytest.raises(Outage, match="cannot serve now"), server.outages():
            await server.reply("SET", "a", 1)
        named = primary
        assert await server.reply("SET", "a", 1) == b"OK"


async def test_a_service_that_the_sentinels_do_not_know(servers: Watched) -> None:
    async with RedisServer(servers.url.replace("service=shop", "service=other"), retries=0) as server:
        with pytest.raises(ConfigError, match=r"know no service 'other'; mend it in the URL"), server.outages():
            await server.commands.ping()


async def test_no_sentinel_answers() -> None:
    async with RedisServer(f"redis-sentinel://127.0.0.1:{free_port()}/0?service=shop", retries=0) as server:
        with (
            pytest.raises(Outage, match=r"no sentinel of redis-sentinel://127\.0\.0\.1:\d+/0 answers"),
            server.outages(),
        ):
            await server.commands.ping()


def test_what_a_url_says() -> None:
    url = "rediss-sentinel://me:sec%40ret@one,[::1]:7/3?service=shop&sentinel_password=other&ssl_ca_certs=/ca"
    assert masked(url) == "rediss-sentinel://one:26379,[::1]:7/3"
    assert split_sentinels(url) == (
        "rediss://me:sec%40ret@one:26379/3?ssl_ca_certs=%2Fca",
        ["rediss://:other@one:26379/0?ssl_ca_certs=%2Fca", "rediss://:other@[::1]:7/0?ssl_ca_certs=%2Fca"],
        "shop",
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis-sentinel://one:26379/0", "redis-sentinel://one:26379/0 does not say which service; end it in"),
        ("redis-sentinel://:sec@one:26379,/0?service=a", r"'redis-sentinel://\*\*\*' is no Redis URL; "),
        ("redis-sentinel://one/x?service=a", "'redis-sentinel://one:26379/x' ends in no database; "),
        ("redis-sentinel://one/0?service=a&foo=b", "has a parameter 'foo', which is not taken"),
    ],
)
def test_a_url_that_can_never_work(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RedisServer(url)
