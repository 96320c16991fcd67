"""What a process looks at before it trusts a server with tapes."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bub_redis.errors import ServerUnfit
from bub_redis.settings import load_settings
from bub_redis.storage.client import RedisServer
from bub_redis.testing import EmbeddedServer
from tests.redis.agents import agent
from worker.jobs import open_runtime


@pytest.fixture(scope="module")
def careless() -> Iterator[EmbeddedServer]:
    """A server that drops keys when its memory is full, and all of them when it ends."""
    with EmbeddedServer(appendonly=False, args=["--maxmemory-policy", "allkeys-lru"]) as started:
        yield started


async def test_a_server_that_may_drop_tapes_is_refused_unless_forced(careless: EmbeddedServer) -> None:
    """Case 139: the error names the policy and the way out."""
    async with RedisServer(careless.url) as server:
        with pytest.raises(ServerUnfit, match=r"allkeys-lru.*noeviction.*BUB_FORCE"):
            await server.check()
        assert (await server.check(force=True)).may_drop_tapes


async def test_a_worker_warns_of_what_may_be_lost(careless: EmbeddedServer) -> None:
    """Case 139: dropped keys, and no persistence."""
    settings = load_settings(redis_url=careless.url, force=True)
    with capture_logs() as logs:
        async with AsyncExitStack() as stack:
            await open_runtime(stack, settings, agent, "w1")
    warned = [log["event"] for log in logs if log["log_level"] == "warning"]
    assert warned == ["server.may_drop_tapes", "server.forgets_at_restart"]


async def test_a_worker_does_not_start_on_a_replica(server: EmbeddedServer, tmp_path: Path) -> None:
    """It would live and never work, and nothing that watches it would know."""
    with EmbeddedServer(data_dir=tmp_path, args=["--replicaof", "127.0.0.1", "1"]) as replica:
        async with AsyncExitStack() as stack:
            with pytest.raises(ServerUnfit, match="is a replica"):
                await open_runtime(stack, load_settings(redis_url=replica.url), agent, "w1")


async def test_a_worker_tells_of_rights_that_it_lacks() -> None:
    """It may still do most of its work, and would hand a turn back for ever where it cannot."""
    user = ["--user", "poor", "on", ">pw", "~*", "&*", "+@all", "-xadd"]
    with EmbeddedServer(args=user) as strict, capture_logs() as logs:
        async with AsyncExitStack() as stack:
            await open_runtime(stack, load_settings(redis_url=f"unix://poor:pw@{strict.socket_path}"), agent, "w1")
    assert [log["rights"] for log in logs if log["event"] == "server.rights_missing"] == [["xadd"]]
