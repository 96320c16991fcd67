"""Stores to run the same contract on."""

import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from fakeredis import TcpFakeServer

from bub_redis.storage import RedisTapeStore
from bub_redis.tape import InMemoryTapeStore
from bub_redis.testing import EmbeddedServer

AnyStore = InMemoryTapeStore | RedisTapeStore


@pytest.fixture(scope="session")
def fake_url() -> Iterator[str]:
    """A fakeredis behind a real socket: the production client is not told."""
    fake = TcpFakeServer(("127.0.0.1", 0), server_type="redis")
    thread = threading.Thread(target=fake.serve_forever, daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{fake.server_address[1]}/0"
    fake.shutdown()
    fake.server_close()


@pytest.fixture
async def redis_store(server: EmbeddedServer, namespace: str) -> AsyncIterator[RedisTapeStore]:
    """A store on the real server."""
    async with RedisTapeStore.from_url(server.url, namespace=namespace) as opened:
        yield opened


@pytest.fixture(params=["memory", "fakeredis", "server"])
async def store(request: pytest.FixtureRequest, namespace: str) -> AsyncIterator[AnyStore]:
    """Each store in turn."""
    if request.param == "memory":
        yield InMemoryTapeStore()
        return
    url = request.getfixturevalue("fake_url" if request.param == "fakeredis" else "server")
    async with RedisTapeStore.from_url(getattr(url, "url", url), namespace=namespace) as opened:
        yield opened
