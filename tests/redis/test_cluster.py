"""Tapes on a Redis Cluster: each in its slot, wherever that is now, while turns are queued on one primary.

The contract of stores runs on a cluster too, see conftest.py. Here is what only a cluster does.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from bub_redis.errors import ConfigError, Outage
from bub_redis.settings import Settings, load_settings
from bub_redis.storage import RedisServer, RedisTapeStore
from bub_redis.storage.cluster import slot_of
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.tail import tail_tape
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.receipt import broken_receipts
from bub_redis.tape.store import Grant
from bub_redis.testing import EmbeddedServer, wait_until
from bub_redis.turns import TurnClient
from tests.redis.agents import agent
from tests.redis.audit import committed_turns
from tests.redis.cluster import Cluster, running_cluster
from tests.redis.commands import complaint, environment, invoke
from tests.redis.workers import working

SOON = timedelta(seconds=20)


@pytest.fixture
def settings(settings: Settings, cluster: Cluster) -> Settings:
    """Turns on the one server, their tapes on the cluster."""
    return settings.model_copy(update={"tape_url": load_settings(tape_url=cluster.url).tape_url})


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[RedisTapeStore]:
    """A store of its own for each test: what it knows of the cluster, it learned in it."""
    async with RedisTapeStore.from_url(settings.tape_address, namespace=settings.namespace) as opened:
        yield opened


def say(text: str) -> TapeEntry:
    return TapeEntry.message({"role": "user", "content": text})


def key_of(store: RedisTapeStore, tape: str) -> str:
    return TapeKeys(store.namespace, tape).tape


def one_on_each(cluster: Cluster, store: RedisTapeStore) -> list[str]:
    """Names of tapes, one for each primary, in their order."""
    found: dict[int, str] = {}
    for number in count():
        found.setdefault(cluster.primary_of(key_of(store, f"t{number}")).port, f"t{number}")
        if len(found) == cluster.primaries:
            break
    return [found[node.port] for node in cluster.nodes[: cluster.primaries]]


async def texts(store: RedisTapeStore, tape: str) -> list[str]:
    """What a tape says, after checking that it is whole."""
    entries = await Tape(tape, store).query().all()
    assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
    assert broken_receipts(entries) == []
    return [entry.text for entry in entries if entry.kind == "message"]


async def appended(store: RedisTapeStore, tape: str, text: str) -> bool:
    """Whether it could be appended now."""
    try:
        await store.append(tape, say(text))
    except Outage:
        return False
    return True


async def test_turns_of_sessions_on_all_nodes_are_followed_and_on_their_tapes(
    cluster: Cluster, store: RedisTapeStore, settings: Settings
) -> None:
    sessions = one_on_each(cluster, store)
    async with TurnClient(settings) as client, working(settings, agent):

        async def asked(session: str) -> str:
            turn = await client.enqueue(session, f"hello {session}", turn_id="m1")
            return "".join([frame.data["delta"] async for frame in client.follow(turn) if frame.type == "text"])

        shown = await asyncio.gather(*map(asked, sessions))
        assert shown == [f"echo: hello {session}" for session in sessions]
        for session in sessions:
            assert await committed_turns(client.store, session, {"m1": f"hello {session}"}) == ["m1"]
    assert all(node.redis.dbsize() for node in cluster.nodes)


async def test_one_follower_more_on_another_node_is_told_at_once(
    cluster: Cluster, store: RedisTapeStore, settings: Settings
) -> None:
    """Each slot is read by itself, since no command may name keys of two; with the follower of one the read ends."""
    first, second, _ = one_on_each(cluster, store)
    async with TurnClient(settings) as client:
        waiting = [await client.enqueue(session, "hello") for session in (first, second, first)]
        following = [asyncio.create_task(client.result(turn, timeout=SOON)) for turn in waiting]
        async with working(settings, agent):
            assert {(await result).text for result in following} == {"echo: hello"}


async def test_tapes_of_all_nodes_are_listed_told_of_tailed_and_deleted(
    cluster: Cluster, store: RedisTapeStore
) -> None:
    tapes = one_on_each(cluster, store)
    for tape in tapes:
        await store.append(tape, say("one"), say("two"))
    assert await store.list_tapes() == sorted(tapes)
    for tape in tapes:
        tailed = tail_tape(store, tape, "0-0")
        assert [(await anext(tailed))[1].text for _ in range(2)] == ["one", "two"]
        assert (await Tape(tape, store).info()).entries == 2
        assert [repair.needed for repair in await store.survey(tape)] == [False]
        await store.delete(tape)
    assert await store.list_tapes() == []
    for node in cluster.nodes:
        assert node.redis.keys(f"{store.namespace}:*") == []


async def test_a_repair_finds_the_keys_of_a_tape_on_its_node(cluster: Cluster, store: RedisTapeStore) -> None:
    """Where `state` was lost only a SCAN tells of sidecars, and it must go to the node that has them."""
    for tape in one_on_each(cluster, store):
        sidecar = f"{tape}__sidecar__notes"
        await store.append(tape, say("one"))
        await store.append(sidecar, say("beside"))
        cluster.primary_of(key_of(store, tape)).redis.delete(TapeKeys(store.namespace, tape).state)
        assert [repair.tape for repair in await store.repair(tape)] == [tape, sidecar]
        await store.append(sidecar, say("more"))
        assert await texts(store, sidecar) == ["beside", "more"]


async def test_nothing_is_lost_or_doubled_while_a_slot_moves(cluster: Cluster, store: RedisTapeStore) -> None:
    """Appends and a fork's merge, before the move, within it, where they may have to wait, and after it."""
    tape = one_on_each(cluster, store)[0]
    source, target, slot = cluster.nodes[0], cluster.nodes[1], slot_of(key_of(store, tape))
    said: list[str] = []

    async def append_on(upto: int) -> None:
        while len(said) < upto:
            try:
                await store.append(tape, say(str(len(said))))
            except Outage:
                # Some keys are here and some are there, which a script cannot do with: nothing was written.
                cluster.move_keys(slot, source, target)
                cluster.end_move(slot, target)
                continue
            said.append(str(len(said)))

    await append_on(5)
    async with Tape(tape, store).fork_tape() as fork:
        await fork.append(say("forked"))
        cluster.begin_move(slot, source, target)
        try:
            await append_on(10)
            assert cluster.primary_of(key_of(store, tape)).port == target.port
        finally:
            cluster.end_move(slot, target)
    await append_on(12)
    assert [text for text in await texts(store, tape) if text != "forked"] == said
    assert (await texts(store, tape)).count("forked") == 1
    cluster.move(slot, target, source)
    assert [text for text in await texts(store, tape) if text != "forked"] == said


async def test_what_has_moved_already_is_read_where_it_is(cluster: Cluster, store: RedisTapeStore) -> None:
    """The old node answers ASK for a key that it has given away; the map stays as it is until the slot has moved."""
    tape = one_on_each(cluster, store)[2]
    source, target, slot = cluster.nodes[2], cluster.nodes[0], slot_of(key_of(store, tape))
    await store.append(tape, say("one"), say("two"))
    cluster.begin_move(slot, source, target)
    try:
        cluster.move_keys(slot, source, target)
        page = await store.server.reply("XRANGE", key_of(store, tape), "-", "+")
        assert len(page) == 2
        assert await store.server.transact(("XLEN", key_of(store, tape)), ("XLEN", key_of(store, tape))) == [2, 2]
        assert await store.has_entries(tape)
    finally:
        cluster.end_move(slot, target)
        cluster.move(slot, target, source)
    assert await texts(store, tape) == ["one", "two"]


async def test_a_node_that_does_not_answer_keeps_nothing_from_the_others(tmp_path: Path, namespace: str) -> None:
    """Locks on the other nodes are renewed: one that died costs only the sessions that it had."""
    with running_cluster(tmp_path) as own:
        async with RedisTapeStore(RedisServer(own.url, retries=0), namespace=namespace, lease_s=5.0) as store:
            tapes = one_on_each(own, store)
            granted = [await store.lock.grant(tape, "run", secret="s") for tape in tapes]  # noqa: S106 - no password
            grants = [grant for grant in granted if isinstance(grant, Grant)]
            assert len(grants) == len(tapes)
            alive = [TapeKeys(namespace, tape).lock for tape in tapes[:2]]
            for node, lock in zip(own.nodes, alive, strict=False):
                node.redis.pexpire(lock, 2000)
            own.nodes[2].server.kill()
            with pytest.raises(Outage):
                await store.lock.renew_all(grants)
            for node, lock in zip(own.nodes, alive, strict=False):
                assert node.redis.execute_command("PTTL", lock) > 3000


@pytest.mark.parametrize("dead", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_a_replica_that_takes_over_is_found(tmp_path: Path, namespace: str, dead: int) -> None:
    """Also in place of the node that the URL names; no entry is there twice, and none that a replica had is lost."""
    with running_cluster(tmp_path, primaries=3, replicas=3) as own:
        async with RedisTapeStore.from_url(own.url, namespace=namespace) as store:
            tape = one_on_each(own, store)[dead]
            for number in range(5):
                await store.append(tape, say(str(number)))
            replica = own.nodes[own.primaries + dead]
            await wait_until(lambda: replica.redis.dbsize() == own.nodes[dead].redis.dbsize(), "a true copy")
            own.nodes[dead].server.kill()
            await wait_until(lambda: appended(store, tape, "after"), "the replica to take over", timeout_s=30)
            found = await texts(store, tape)
            assert found[:5] == ["0", "1", "2", "3", "4"] and set(found[5:]) == {"after"}
            assert replica.role == "master"


async def test_a_node_that_was_taken_out_is_left_for_the_one_that_took_over(tmp_path: Path, namespace: str) -> None:
    """It answers as before, and says that its cluster is down: it is alone."""
    with running_cluster(tmp_path, replicas=1) as own:
        old, replica = own.nodes[0], own.nodes[own.primaries]
        async with RedisTapeStore.from_url(own.url, namespace=namespace) as store:
            tape = one_on_each(own, store)[0]
            await store.append(tape, say("before"))
            replica.redis.execute_command("CLUSTER", "FAILOVER")
            await wait_until(lambda: replica.role == "master", "the fail-over", timeout_s=20)
            old_id = old.id
            for node in own.nodes[1:]:
                node.redis.execute_command("CLUSTER", "FORGET", old_id)
            old.redis.execute_command("CLUSTER", "RESET", "SOFT")
            await wait_until(lambda: appended(store, tape, "after"), "the others to agree", timeout_s=20)
            assert await texts(store, tape) == ["before", "after"]


async def test_nodes_that_have_no_name_are_asked_where_they_were_met(tmp_path: Path, namespace: str) -> None:
    """A cluster that tells host names, of which none was announced, tells `?`."""
    with running_cluster(tmp_path, "--cluster-preferred-endpoint-type", "hostname") as own:
        async with RedisTapeStore.from_url(own.url, namespace=namespace) as store:
            for tape in one_on_each(own, store):
                await store.append(tape, say("hello"))
            async with store.server.primaries() as primaries:
                assert len(primaries) == own.primaries


async def test_once_it_knows_the_others_a_client_needs_no_node_that_its_url_names(tmp_path: Path) -> None:
    with running_cluster(tmp_path, replicas=1) as own:
        settings = load_settings(redis_url=own.nodes[0].server.url, tape_url=own.url)
        async with TurnClient(settings) as client:
            assert await client.store.list_tapes() == []
            own.nodes[0].server.kill()

            async def found() -> bool:
                try:
                    return await client.store.server.slot_of("a") is not None
                except Outage:
                    return False

            await wait_until(found, "the others to be asked")
            async with client.store.server.primaries() as primaries:
                assert primaries


async def test_a_node_that_no_cluster_has_given_slots_is_named(tmp_path: Path) -> None:
    """It must not pass for a cluster of which nothing is wrong, since there is nothing."""
    with EmbeddedServer(data_dir=tmp_path, args=["--cluster-enabled", "yes"]) as alone:
        async with RedisServer(alone.url) as server:
            with pytest.raises(Outage, match="no cluster has given slots"):
                async with server.primaries():
                    pass


async def test_the_queue_is_refused_on_a_cluster(cluster: Cluster) -> None:
    async with TurnClient(load_settings(redis_url=cluster.url)) as client:
        with pytest.raises(ConfigError, match="BUB_TAPE_URL"):
            await client.enqueue("s", "hello")


async def test_every_primary_is_looked_at_before_work_begins(cluster: Cluster) -> None:
    async with RedisServer(cluster.url) as server, server.primaries() as primaries:
        assert sorted(primary.address for primary in primaries) == sorted(
            f"redis://127.0.0.1:{node.port}" for node in cluster.nodes
        )
        for primary in primaries:
            assert (await primary.check()).is_cluster


def test_the_doctor_and_the_commands_find_their_way_on_a_cluster(cluster: Cluster, settings: Settings) -> None:
    env = environment(settings, BUB_TAPE_URL=cluster.url)
    examined = [json.loads(line)["what"] for line in invoke("doctor", "--json", env=env).stdout.splitlines()]
    for node in cluster.nodes:
        assert {f"tape 127.0.0.1:{node.port} persistence", f"tape 127.0.0.1:{node.port} rights"} <= set(examined)
    asyncio.run(fill(settings))
    listed = [json.loads(line) for line in invoke("tape", "ls", "--json", env=env).stdout.splitlines()]
    assert sorted(tape["tape"] for tape in listed) == [f"s{number}" for number in range(6)]
    assert invoke("tape", "verify", "s3", env=env).returncode == 0
    refused = invoke("queue", env=environment(settings, BUB_REDIS_URL=cluster.url))
    assert refused.returncode == 2 and "name one in BUB_REDIS_URL" in complaint(refused)


async def fill(settings: Settings) -> None:
    async with RedisTapeStore.from_url(settings.tape_address, namespace=settings.namespace) as store:
        for number in range(6):
            await store.append(f"s{number}", say("hello"))
