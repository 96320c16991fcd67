"""Stores to run the same contract on."""

import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from fakeredis import TcpFakeServer

from bub_redis.storage import RedisTapeStore
from bub_redis.tape import FileTapeStore, InMemoryTapeStore, TapeEntry, TapeQuery, TapeStore
from bub_redis.tape.adapter import AdaptedStore
from bub_redis.tape.query import answer
from bub_redis.testing import EmbeddedServer
from tests.redis.cluster import Cluster, running_cluster

AnyStore = InMemoryTapeStore | AdaptedStore | RedisTapeStore


class _FakeServer(TcpFakeServer):
    request_queue_size = 128
    """As many connections may come at once; 5 are the default of socketserver."""


@pytest.fixture(scope="session")
def fake_url() -> Iterator[str]:
    """A fakeredis behind a real socket: the production client is not told."""
    fake = _FakeServer(("127.0.0.1", 0), server_type="redis")
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


class OneByOneStore:
    """A store as Bub's are: it blocks, takes one entry at a time and returns nothing."""

    def __init__(self) -> None:
        self._tapes: dict[str, list[TapeEntry]] = {}

    def list_tapes(self) -> list[str]:
        """The names of its tapes."""
        return sorted(self._tapes)

    def fetch_all(self, query: TapeQuery) -> list[TapeEntry]:
        """The answer to a query."""
        return answer(query, self._tapes.get(query.tape, []))

    def append(self, tape: str, entry: TapeEntry) -> None:
        """Append one entry."""
        entries = self._tapes.setdefault(tape, [])
        entries.append(replace(entry, id=len(entries) + 1))

    def reset(self, tape: str) -> None:
        """Forget a tape."""
        self._tapes.pop(tape, None)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of three primaries, for the whole run."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(params=["memory", "file", "one by one", "fakeredis", "server", "cluster"])
async def store(request: pytest.FixtureRequest, namespace: str, tmp_path: Path) -> AsyncIterator[AnyStore]:
    """Each store in turn."""
    match request.param:
        case "memory":
            yield InMemoryTapeStore()
            return
        case "file":
            yield AdaptedStore(FileTapeStore(tmp_path, fsync=False))
            return
        case "one by one":
            # What Bub's own stores take, ours take for granted: a batch in one call.
            yield AdaptedStore(cast(TapeStore, OneByOneStore()))
            return
    url = request.getfixturevalue("fake_url" if request.param == "fakeredis" else request.param)
    async with RedisTapeStore.from_url(getattr(url, "url", url), namespace=namespace) as opened:
        yield opened
