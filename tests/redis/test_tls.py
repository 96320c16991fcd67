"""Over TLS everything is as without it; a certificate that proves nothing is refused, with what to do."""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bub_redis.errors import ConfigError, Outage
from bub_redis.settings import Settings, load_settings
from bub_redis.storage import RedisServer, RedisTapeStore
from bub_redis.tape import TapeEntry
from bub_redis.testing import EmbeddedServer
from bub_redis.turns import TurnClient
from tests.redis.agents import agent
from tests.redis.cluster import free_port, running_cluster
from tests.redis.slow_line import slow_line
from tests.redis.tls import Authority, new_authority, server_that_speaks_tls
from tests.redis.workers import working

LARGE = b"x" * 2_500_000
TIMEOUT_S = 0.2


@dataclass(frozen=True)
class SecureServer:
    """A server and the port at which it speaks TLS."""

    server: EmbeddedServer
    authority: Authority
    port: int

    @property
    def url(self) -> str:
        """What a client is told that trusts the authority."""
        return self.authority.url(self.port)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority of these tests."""
    return new_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[SecureServer]:
    """A server that speaks TLS."""
    port = free_port()
    options = authority.server_options(port)
    with EmbeddedServer(binary=server_that_speaks_tls(), appendonly=False, args=options) as server:
        yield SecureServer(server, authority, port)


async def test_a_turn(secure: SecureServer, settings: Settings) -> None:
    over_tls = settings.model_copy(update={"redis_url": load_settings(redis_url=secure.url).redis_url})
    async with working(over_tls, agent), TurnClient(over_tls) as client:
        turn = await client.enqueue("customer", "Where is my order?")
        frames = [frame.type async for frame in client.follow(turn)]
        assert (await client.result(turn)).status == "completed"
    assert (frames[0], frames[-1]) == ("queued", "finished")


async def test_what_a_slow_line_carries_bit_by_bit_is_waited_for(secure: SecureServer) -> None:
    async with slow_line(secure.port) as line:
        port = urlsplit(line).port
        assert port is not None
        async with RedisServer(secure.authority.url(port), timeout_s=TIMEOUT_S, retries=0) as slow:
            began = time.monotonic()
            assert await slow.commands.execute_command("ECHO", LARGE) == LARGE
            assert time.monotonic() - began > 3 * TIMEOUT_S


def test_a_server_that_hangs_is_left_without_an_error(secure: SecureServer) -> None:
    """A connection's end is agreed upon in TLS; who does not answer is not waited for, and no socket stays open."""
    assert secure.server.pid is not None
    pid = secure.server.pid

    async def leave() -> None:
        async with RedisServer(secure.url, retries=0) as server:
            assert await server.commands.ping()
            os.kill(pid, signal.SIGSTOP)

    try:
        asyncio.run(leave())
    finally:
        os.kill(pid, signal.SIGCONT)
    # A socket that was left open would complain.
    gc.collect()


async def test_tapes_on_a_cluster(authority: Authority, tmp_path: Path) -> None:
    """Each node is asked by the name that its certificate is for."""
    tapes = [f"customer/{number}" for number in range(12)]
    with running_cluster(tmp_path, authority=authority) as cluster:
        async with RedisTapeStore.from_url(cluster.url) as store:
            for tape in tapes:
                await store.append(tape, TapeEntry.message({"role": "user", "content": "hello"}))
            assert sorted(await store.list_tapes()) == sorted(tapes)


async def refused(url: str) -> str:
    """Why nothing is asked there."""
    async with RedisServer(url, retries=0) as server:
        with pytest.raises(Outage) as raised, server.outages():
            await server.commands.ping()
    return str(raised.value)


async def test_an_authority_that_nobody_knows(secure: SecureServer) -> None:
    said = await refused(f"rediss://localhost:{secure.port}/0")
    assert "TLS failed: self-signed certificate in certificate chain" in said.replace("self signed", "self-signed")
    assert said.endswith("rediss://host:port/0?ssl_ca_certs=/path/to/ca.crt")


async def test_a_certificate_for_another_host(secure: SecureServer) -> None:
    assert "certificate is not valid for '127.0.0.1'" in await refused(
        secure.authority.url(secure.port, host="127.0.0.1")
    )


@pytest.mark.parametrize("trusting", ["ssl_check_hostname=false", "ssl_cert_reqs=none"])
async def test_a_url_may_ask_for_less(secure: SecureServer, trusting: str) -> None:
    url = f"{secure.authority.url(secure.port, host='127.0.0.1')}&{trusting}"
    async with RedisServer(url) as server:
        assert await server.commands.ping()


async def test_a_port_without_tls(tmp_path: Path) -> None:
    port = free_port()
    with EmbeddedServer(data_dir=tmp_path, args=["--port", str(port), "--bind", "127.0.0.1"]):
        assert "with TLS at this port" in await refused(f"rediss://127.0.0.1:{port}/0")


@pytest.mark.parametrize("parameter", ["ssl_ca_certs", "ssl_certfile=/dev/null&ssl_keyfile"])
def test_files_that_are_not_there(parameter: str) -> None:
    with pytest.raises(ConfigError, match=r"that the URL of rediss://localhost:6379/0 names cannot be used \("):
        RedisServer(f"rediss://localhost/0?{parameter}=/nowhere")
