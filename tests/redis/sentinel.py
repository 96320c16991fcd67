"""A primary with a replica, and a sentinel that watches over them."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from bub_redis.testing import EmbeddedServer
from bub_redis.testing.server import bundled_server
from bub_redis.testing.tied import tied_command
from tests.redis.cluster import free_port

SERVICE = "shop"
_DOWN_AFTER_MS = 500
_FORMED_S = 30.0


@dataclass
class Watched:
    """Two servers, of which one is the primary, and where their sentinel listens."""

    servers: list[tuple[EmbeddedServer, int]]
    sentinel_port: int

    @property
    def url(self) -> str:
        """What a client is told; the first sentinel of it is gone."""
        return f"redis-sentinel://127.0.0.1:{free_port()},127.0.0.1:{self.sentinel_port}/0?service={SERVICE}"

    @property
    def primary(self) -> EmbeddedServer:
        """Whom the sentinel names now."""
        with Redis(port=self.sentinel_port) as sentinel:
            told = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(server for server, port in self.servers if port == int(told[1]))


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    """The servers and their sentinel, once it knows of the replica."""
    with ExitStack() as stack:
        servers: list[tuple[EmbeddedServer, int]] = []
        binary = os.environ.get("BUB_TEST_SERVER")
        for number in range(2):
            port = free_port()
            args = ["--port", str(port), "--bind", "127.0.0.1"]
            if servers:
                args += ["--replicaof", "127.0.0.1", str(servers[0][1])]
            server = EmbeddedServer(binary=binary, data_dir=folder / str(number), args=args)
            servers.append((stack.enter_context(server), port))
        found = Watched(servers, free_port())
        _start_sentinel(stack, folder, found)
        _wait_until_known(found)
        yield found


def _start_sentinel(stack: ExitStack, folder: Path, found: Watched) -> None:
    rules = folder / "sentinel.conf"
    rules.write_text(
        f"port {found.sentinel_port}\nbind 127.0.0.1\nsentinel monitor {SERVICE} 127.0.0.1 {found.servers[0][1]} 1\n"
        f"sentinel down-after-milliseconds {SERVICE} {_DOWN_AFTER_MS}\nsentinel failover-timeout {SERVICE} 3000\n",
        encoding="ascii",
    )
    binary = os.environ.get("BUB_TEST_SERVER") or str(bundled_server())
    process = subprocess.Popen(
        tied_command([binary, str(rules), "--sentinel"]), cwd=folder, stdout=subprocess.DEVNULL, start_new_session=True
    )
    stack.callback(process.wait)
    stack.callback(process.kill)


def _wait_until_known(found: Watched) -> None:
    """Wait without an event loop, as for other servers."""
    deadline = time.monotonic() + _FORMED_S
    while True:
        try:
            with Redis(port=found.sentinel_port) as sentinel:
                replicas = sentinel.execute_command("SENTINEL", "REPLICAS", SERVICE)
        except RedisConnectionError:
            replicas = []
        if any("disconnected" not in str(replica) and "'ok'" in str(replica) for replica in replicas):
            return
        assert time.monotonic() < deadline, "the sentinel knows of no replica in step"
        time.sleep(0.05)  # noqa: TID251 - other processes agree among themselves
