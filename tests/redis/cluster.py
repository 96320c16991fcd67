"""A cluster on this machine: primaries that share the slots, and replicas if asked for."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from redis import Redis

from bub_redis.storage.cluster import slot_of
from bub_redis.testing import EmbeddedServer
from tests.redis.tls import HOST, Authority, server_that_speaks_tls

_SLOTS = 16_384
_NODE_TIMEOUT_MS = 500
_FORMED_S = 30.0


@dataclass
class Node:
    """One server of a cluster."""

    server: EmbeddedServer
    port: int
    bus_port: int

    @cached_property
    def redis(self) -> Redis:
        """Commands to this very node."""
        return Redis(unix_socket_path=str(self.server.socket_path))

    @property
    def role(self) -> str:
        """`master` or `slave`, as it says itself."""
        return str(self.redis.execute_command("ROLE")[0].decode())

    @property
    def id(self) -> str:
        """What the others call it."""
        return str(self.redis.execute_command("CLUSTER", "MYID").decode())


@dataclass
class Cluster:
    """Primaries in the order of their slots, then a replica of each as far as there are any."""

    nodes: list[Node]
    primaries: int
    url: str
    """What a client is told: any node."""

    def primary_of(self, key: str) -> Node:
        """The node that the first one says has this key."""
        slot = slot_of(key)
        for first, last, (_, port, *_), *_ in self.nodes[0].redis.execute_command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise LookupError(key)

    def begin_move(self, slot: int, source: Node, target: Node) -> None:
        """Open the slot for moving: what is not at the source any more is asked for at the target."""
        target.redis.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.redis.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, slot: int, source: Node, target: Node) -> None:
        """Move the keys that the slot has now."""
        keys = source.redis.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        if keys:
            source.redis.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    def move(self, slot: int, source: Node, target: Node) -> None:
        """Move a slot with all that it has, as it is written to meanwhile."""
        self.begin_move(slot, source, target)
        while source.redis.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot):
            self.move_keys(slot, source, target)
        self.end_move(slot, target)

    def wait_until_whole(self) -> None:
        """Return once all nodes serve again."""
        _wait(lambda: all(map(_is_ready, self.nodes)), "the cluster to be whole")

    def end_move(self, slot: int, target: Node) -> None:
        """Give the slot to the target for good."""
        for node in (target, *(node for node in self.nodes if node is not target)):
            node.redis.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target.id)


@contextmanager
def running_cluster(
    folder: Path, *options: str, primaries: int = 3, replicas: int = 0, authority: Authority | None = None
) -> Iterator[Cluster]:
    """A cluster whose data is in `folder`, ready when the block begins; `options` are those of each server.

    With an authority it speaks nothing but TLS.
    """
    with ExitStack() as stack:
        nodes = [_started(stack, folder / str(number), options, authority) for number in range(primaries + replicas)]
        bounds = [_SLOTS * number // primaries for number in range(primaries + 1)]
        for node, (first, behind) in zip(nodes, pairwise(bounds), strict=False):
            node.redis.execute_command("CLUSTER", "ADDSLOTSRANGE", first, behind - 1)
        for node in nodes[1:]:
            node.redis.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].bus_port)
        first_port = nodes[0].port
        url = authority.url(first_port) if authority else f"redis://127.0.0.1:{first_port}/0"
        cluster = Cluster(nodes, primaries, url)
        _wait(lambda: all(_knows_all(node, cluster) for node in nodes), "all nodes to know each other")
        for replica, primary in zip(nodes[primaries:], nodes, strict=False):
            replica.redis.execute_command("CLUSTER", "REPLICATE", primary.id)
        cluster.wait_until_whole()
        yield cluster
        for node in nodes:
            node.redis.close()


def _started(stack: ExitStack, folder: Path, options: Sequence[str], authority: Authority | None) -> Node:
    port, bus_port = free_port(), free_port()
    args = ["--cluster-enabled", "yes", "--cluster-port", str(bus_port)]
    args += ["--cluster-node-timeout", str(_NODE_TIMEOUT_MS)]
    if authority:
        args += [*authority.server_options(port), "--tls-cluster", "yes", "--cluster-announce-hostname", HOST]
        args += ["--cluster-preferred-endpoint-type", "hostname"]
        binary: str | None = server_that_speaks_tls()
    else:
        args += ["--port", str(port), "--bind", "127.0.0.1"]
        binary = os.environ.get("BUB_TEST_SERVER")
    return Node(
        stack.enter_context(EmbeddedServer(binary=binary, data_dir=folder, args=[*args, *options])), port, bus_port
    )


def _knows_all(node: Node, cluster: Cluster) -> bool:
    known: str = node.redis.execute_command("CLUSTER INFO")["cluster_known_nodes"]
    return known == str(len(cluster.nodes))


def _is_ready(node: Node) -> bool:
    """Whether the node sees a whole cluster, and takes part in it."""
    is_whole: bool = node.redis.execute_command("CLUSTER INFO")["cluster_state"] == "ok"
    role, *rest = node.redis.execute_command("ROLE")
    return is_whole and (role == b"master" or rest[2] == b"connected")


def _wait(condition: Callable[[], bool], what: str) -> None:
    """Wait without an event loop: the fixture of a session has none."""
    deadline = time.monotonic() + _FORMED_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {_FORMED_S:g} s: {what}"
        time.sleep(0.02)  # noqa: TID251 - other processes agree among themselves


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
