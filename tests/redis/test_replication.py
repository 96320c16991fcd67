"""A primary with a replica: what a fail-over may lose, and the option that waits."""

import os
import signal
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from bub_redis.errors import Outage
from bub_redis.settings import Settings, load_settings
from bub_redis.storage import RedisServer, RedisTapeStore
from bub_redis.storage.script import Replicas, Script
from bub_redis.tape import TapeEntry
from bub_redis.tape.fork import Fork
from bub_redis.testing import EmbeddedServer, wait_until
from bub_redis.turns import TurnClient
from tests.redis.agents import agent
from tests.redis.audit import committed_turns
from tests.redis.proxy import proxied
from tests.redis.workers import working

SOON = timedelta(seconds=20)


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[tuple[EmbeddedServer, int]]:
    """A server that a replica can reach: replication needs a port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with EmbeddedServer(data_dir=tmp_path / "primary", args=["--port", str(port), "--bind", "127.0.0.1"]) as server:
        yield server, port


def replica_of(port: int, folder: Path) -> EmbeddedServer:
    return EmbeddedServer(data_dir=folder, args=["--replicaof", "127.0.0.1", str(port)])


def waiting(server: EmbeddedServer) -> Settings:
    return load_settings(redis_url=server.url, wait_replicas=1, wait_replicas_s=0.2, reconcile_s=0.05)


async def replicated(client: TurnClient) -> bool:
    info = await client.server.commands.info("replication")
    return int(info["connected_slaves"]) == 1 and info["slave0"]["state"] == "online"


async def test_a_commit_is_acknowledged_when_a_replica_has_it(
    primary: tuple[EmbeddedServer, int], tmp_path: Path
) -> None:
    server, port = primary
    with replica_of(port, tmp_path / "replica") as copy:
        async with TurnClient(waiting(server)) as client, working(waiting(server), agent):
            await wait_until(lambda: replicated(client), "the replica to be in step", timeout_s=20)
            turn = await client.enqueue("s", "hello", turn_id="m1")
            assert (await client.result(turn, timeout=SOON)).status == "completed"
        async with TurnClient(load_settings(redis_url=copy.url)) as reader:
            assert await committed_turns(reader.store, "s", {"m1": "hello"}) == ["m1"]


async def test_a_merge_whose_reply_was_lost_is_not_acknowledged_without_the_replica(
    primary: tuple[EmbeddedServer, int], tmp_path: Path
) -> None:
    """The repeat comes over another connection, whose WAIT does not count for what the first one wrote."""
    server, port = primary
    merge = Script("bub_redis.storage", "merge")
    with replica_of(port, tmp_path / "replica") as copy:
        async with proxied(server, tmp_path) as wire, TurnClient(waiting(server)) as client:
            await wait_until(lambda: replicated(client), "the replica to be in step", timeout_s=20)
            own = RedisTapeStore(RedisServer(wire.url), replicas=Replicas(1, 0.2))
            await own.server.commands.script_load(merge.text)
            async with own, own.session("s", "run", 1.0) as grant:
                fork = await Fork.open(own, grant)
                await fork.append("s", TapeEntry.event("e"))
                assert copy.pid
                os.kill(copy.pid, signal.SIGSTOP)
                wire.lose_reply_to(merge.sha.encode(), 1)
                with pytest.raises(Outage, match="replicas"):
                    await fork.merge("completed")
                assert wire.struck == 1
                os.kill(copy.pid, signal.SIGCONT)
                await wait_until(lambda: replicated(client), "the replica to be in step again", timeout_s=20)
                assert (await fork.merge("completed")).entries == 1


async def test_without_a_replica_the_turn_ends_when_one_comes(
    primary: tuple[EmbeddedServer, int], tmp_path: Path
) -> None:
    """It is on this server's tape once; what waits is the acknowledgement, uncharged."""
    server, port = primary
    async with TurnClient(waiting(server)) as client, working(waiting(server), agent):
        turn = await client.enqueue("s", "hello", turn_id="m1")

        async def handed_back() -> bool:
            standing = await client.queue.standing(turn)
            return standing is not None and standing.attempt > 1

        await wait_until(handed_back, "the turn to be handed back")
        assert (await client.queue.standing(turn)).status in {"queued", "running"}  # type: ignore[union-attr]
        with replica_of(port, tmp_path / "replica"):

            async def ended() -> bool:
                standing = await client.queue.standing(turn)
                return standing is not None and standing.status == "completed"

            await wait_until(ended, "the turn to end once a replica is there", timeout_s=30)
        assert await committed_turns(client.store, "s", {"m1": "hello"}) == ["m1"]


async def test_after_a_failover_what_is_there_is_whole_and_goes_on(
    primary: tuple[EmbeddedServer, int], tmp_path: Path
) -> None:
    """The replica is promoted; a turn that it never received is gone, and the next ones follow on what survived."""
    server, port = primary
    with replica_of(port, tmp_path / "replica") as copy:
        async with TurnClient(load_settings(redis_url=server.url)) as client:
            await wait_until(lambda: replicated(client), "the replica to be in step", timeout_s=20)
            async with working(load_settings(redis_url=server.url), agent):
                await client.result(await client.enqueue("s", "hello", turn_id="m1"), timeout=SOON)
            await client.server.commands.wait(1, 5000)
        server.kill()
        promoted = load_settings(redis_url=copy.url)
        async with TurnClient(promoted) as client:
            await client.server.commands.execute_command("REPLICAOF", "NO", "ONE")
            async with working(promoted, agent):
                await client.result(await client.enqueue("s", "after", turn_id="m2"), timeout=SOON)
            assert await committed_turns(client.store, "s", {"m1": "hello", "m2": "after"}) == ["m1", "m2"]


@pytest.mark.parametrize("asking", ["in one piece", "by name"])
async def test_a_connection_to_a_server_that_became_a_replica_is_not_used_again(
    primary: tuple[EmbeddedServer, int], asking: str
) -> None:
    """The address may lead to another server by now, and a demotion by hand closes no connection."""
    server, port = primary

    async def write() -> None:
        with client.outages():
            await (client.reply("SET", "a", 1) if asking == "in one piece" else client.commands.set("a", 1))

    async with RedisServer(f"redis://127.0.0.1:{port}/0") as client, RedisServer(server.url) as operator:
        await write()
        before = await operator.commands.client_list()
        await operator.commands.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(Outage, match="cannot serve now"):
            await write()
        await operator.commands.execute_command("REPLICAOF", "NO", "ONE")
        await write()
        assert ids(await operator.commands.client_list()) - ids(before)


def ids(clients: list[dict[str, str]]) -> set[str]:
    return {client["id"] for client in clients}
