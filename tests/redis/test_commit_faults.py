"""A commit meets a server or a wire that fails: it is done once, or it is raised with nothing written (case 149)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from bub_redis.errors import BubError, ConfigError, Outage, TapeBlocked
from bub_redis.storage import RedisTapeStore
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape import Tape, TapeSidecar
from bub_redis.tape.fork import Fork
from bub_redis.tape.receipt import broken_receipts
from bub_redis.tape.store import Commit, Head
from bub_redis.testing import EmbeddedServer
from tests.entries import say, texts
from tests.redis.proxy import Proxy, proxied

SAID = "what the user said"
NOTES = TapeSidecar("notes")


@pytest.fixture
async def proxy(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Proxy]:
    """A wire to the shared server."""
    async with proxied(server, tmp_path) as wire:
        yield wire


@pytest.fixture
async def store(proxy: Proxy, namespace: str) -> AsyncIterator[RedisTapeStore]:
    """A store at the end of the wire."""
    async with RedisTapeStore.from_url(proxy.url, namespace=namespace) as opened:
        yield opened


async def prepared(store: RedisTapeStore, run: str = "run-1") -> Commit:
    """A commit of one message, ready to be sent."""
    async with store.session("t", run, 1.0) as grant:
        fork = await Fork.open(store, grant)
        await fork.append("t", say(SAID))
        return await fork.prepare("completed")


# A wire that fails


async def test_a_merge_whose_reply_is_lost_is_made_once(store: RedisTapeStore, proxy: Proxy) -> None:
    """Cases 94 and 144: the client repeats it, and the mark of the first time answers."""
    commit = await prepared(store)
    proxy.lose_reply_to(SAID.encode(), times=2)
    receipt = await store.commit(commit)
    entries = await Tape("t", store).query().all()
    assert proxy.struck == 2
    assert [entry.id for entry in entries] == [1, 2]
    assert receipt.last == 2
    assert broken_receipts(entries) == []


async def test_a_merge_whose_replies_are_all_lost_is_an_outage_and_may_be_repeated(
    store: RedisTapeStore, proxy: Proxy
) -> None:
    """The outcome is unknown to the caller, so it is told so; what it repeats later is made once."""
    commit = await prepared(store)
    proxy.lose_reply_to(SAID.encode(), times=100)
    with pytest.raises(Outage):
        await store.commit(commit)
    proxy.heal()
    assert (await store.commit(commit)).last == 2
    assert len(await Tape("t", store).query().all()) == 2


async def test_an_append_whose_reply_is_lost_is_made_once(store: RedisTapeStore, proxy: Proxy) -> None:
    """Case 144."""
    proxy.lose_reply_to(SAID.encode(), times=2)
    (entry,) = await store.append("t", say(SAID))
    assert proxy.struck == 2
    assert [one.id for one in await Tape("t", store).query().all()] == [entry.id] == [1]


async def test_what_is_written_ahead_is_written_once(store: RedisTapeStore, proxy: Proxy) -> None:
    tape = Tape("t", store, sidecars=[NOTES])
    async with tape.fork_tape() as fork:
        assert isinstance(fork.store, Fork)
        proxy.lose_reply_to(SAID.encode(), times=2)
        await fork.store.append_ahead(tape.sidecar_tape_name("notes"), say(SAID))
        await fork.store.append_ahead(tape.sidecar_tape_name("notes"), say("next"))
    found = await Tape(tape.sidecar_tape_name("notes"), store).query().all()
    assert texts(found) == [SAID, "next"]


async def test_what_is_written_ahead_after_an_unknown_outcome_is_not_taken_for_its_repeat(
    store: RedisTapeStore, proxy: Proxy
) -> None:
    """A chunk that was never written would else count as stored."""
    tape = Tape("t", store, sidecars=[NOTES])
    notes = tape.sidecar_tape_name("notes")
    async with tape.fork_tape() as fork:
        assert isinstance(fork.store, Fork)
        await fork.store.append_ahead(notes, say("first"))
        proxy.lose_reply_to(SAID.encode(), times=100)
        with pytest.raises(Outage):
            await fork.store.append_ahead(notes, say(SAID))
        proxy.heal()
        await fork.store.append_ahead(notes, say("another"))
    assert texts(await Tape(notes, store).query().all()) == ["first", SAID, "another"]


async def test_a_reset_whose_reply_is_lost_is_made_once(store: RedisTapeStore, proxy: Proxy) -> None:
    """What others append right after it is not taken by its repeat."""
    await store.append("t", say("old"))
    for force in (False, True):
        before = await store.head("t")
        proxy.lose_reply_to(b"session/start", times=1)
        await Tape("t", store).reset(force=force)
        assert (await store.head("t")).generation == before.generation + 1
    assert proxy.struck == 2


async def test_a_request_that_never_arrives_is_sent_again(store: RedisTapeStore, proxy: Proxy) -> None:
    commit = await prepared(store)
    proxy.cut_before(SAID.encode(), times=2)
    await store.commit(commit)
    assert texts(await Tape("t", store).query().all()) == [SAID]


@pytest.mark.parametrize("reply", ["-LOADING Redis is loading the dataset in memory", "-BUSY Redis is busy running"])
async def test_a_server_that_cannot_answer_now_is_an_outage(store: RedisTapeStore, proxy: Proxy, reply: str) -> None:
    """LOADING and BUSY: nothing was written, and what the user said is not in the error."""
    commit = await prepared(store)
    proxy.answer(SAID.encode(), b"+OK\r\n" + f"{reply}\r\n".encode() * 2, times=100)
    with pytest.raises(Outage) as raised:
        await store.commit(commit)
    assert SAID not in str(raised.value)
    proxy.heal()
    assert await Tape("t", store).query().all() == []
    await store.commit(commit)
    assert texts(await Tape("t", store).query().all()) == [SAID]


# A server that forgets its scripts


async def test_a_server_that_forgot_its_scripts_is_told_them_again(redis_store: RedisTapeStore) -> None:
    """NOSCRIPT at every single step."""
    tape = Tape("t", redis_store, sidecars=[NOTES])

    async def forgetful(step: Callable[[], Awaitable[object]]) -> None:
        await redis_store.server.commands.execute_command("SCRIPT", "FLUSH")
        await step()

    await forgetful(tape.ensure_bootstrap_anchor)
    await forgetful(lambda: tape.append(say("a")))
    commit = await prepared(redis_store)
    await forgetful(lambda: redis_store.commit(commit))
    await forgetful(tape.reset)
    await forgetful(lambda: redis_store.delete("t"))
    assert await redis_store.list_tapes() == []


# A server that cannot write


@pytest.fixture
async def failing(tmp_path: Path) -> AsyncIterator[tuple[RedisTapeStore, Callable[..., Awaitable[object]]]]:
    """A store on a server of its own, and how to send it a command."""
    with EmbeddedServer(appendonly=False) as own:
        async with RedisTapeStore.from_url(own.url) as opened:
            yield opened, opened.server.commands.execute_command


Failing = tuple[RedisTapeStore, Callable[..., Awaitable[object]]]


async def everything_fails(store: RedisTapeStore, commit: Commit) -> None:
    tape = Tape("t", store, sidecars=[NOTES])
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: store.append("t", say(SAID)),
        lambda: store.commit(commit),
        lambda: store.append_fenced(commit.grant, tape.sidecar_tape_name("notes"), Head(), [say(SAID)]),
        lambda: Tape("new", store).ensure_bootstrap_anchor(),
    ]
    for step in steps:
        with pytest.raises(BubError) as raised:
            await step()
        assert isinstance(raised.value, Outage)
        assert SAID not in str(raised.value)


async def test_a_server_out_of_memory_changes_nothing(failing: Failing) -> None:
    """Case 151: an error to the caller, the turn not acknowledged, the tape as it was."""
    store, send = failing
    await store.append("t", say("before"))
    commit = await prepared(store)
    before = await store.server.commands.execute_command("HGETALL", TapeKeys("bub", "t").state)
    await send("CONFIG", "SET", "maxmemory", "1")
    await everything_fails(store, commit)
    assert texts(await Tape("t", store).query().all()) == ["before"]
    assert await store.server.commands.execute_command("HGETALL", TapeKeys("bub", "t").state) == before
    await send("CONFIG", "SET", "maxmemory", "0")
    await store.commit(commit)
    assert broken_receipts(await Tape("t", store).query().all()) == []


async def test_a_replica_changes_nothing(failing: Failing) -> None:
    """READONLY, as after a fail-over: raised at the first write of each script."""
    store, send = failing
    await store.append("t", say("before"))
    commit = await prepared(store)
    await send("REPLICAOF", "127.0.0.1", "1")
    await everything_fails(store, commit)
    with pytest.raises(Outage):
        await Tape("t", store).reset(force=True)
    await send("REPLICAOF", "NO", "ONE")
    assert texts(await Tape("t", store).query().all()) == ["before"]
    await store.commit(commit)
    assert texts(await Tape("t", store).query().all()) == ["before", SAID]


async def test_a_forced_reset_needs_no_memory(failing: Failing) -> None:
    """It asks for no lock, and what frees memory is let through by the server, and done whole."""
    store, send = failing
    await store.append("t", say("before"))
    await send("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Outage):
        await Tape("t", store).reset()
    await Tape("t", store).reset(force=True)
    await send("CONFIG", "SET", "maxmemory", "0")
    assert [entry.kind for entry in await Tape("t", store).query().all()] == ["anchor", "event"]


async def test_merges_at_once_land_whole_and_none_starves(redis_store: RedisTapeStore) -> None:
    """Case 95: two writers in turn, neither of them kept waiting by the other."""
    done: list[str] = []

    async def write(name: str) -> None:
        tape = Tape("t", redis_store)
        for number in range(15):
            async with tape.fork_tape(wait_s=20) as fork:
                await fork.append(say(f"{name} {number}"), say(f"{name} {number}"))
            done.append(name)

    await asyncio.gather(write("a"), write("b"))
    found = texts(await Tape("t", redis_store).query().all())
    assert found[::2] == found[1::2]
    for name in "ab":
        assert [text for text in found[::2] if text.startswith(name)] == [f"{name} {number}" for number in range(15)]
    # Each got to write while the other still had something to write.
    assert {"a", "b"} == set(done[:20])


# Keys that are not what they should be

WRITTEN = ["tape", "anchors", "latest", "state"]


@pytest.mark.parametrize("key", [*WRITTEN, "turns", "lock", "fence", "frames"])
async def test_a_merge_to_a_key_of_another_type_is_refused_whole(redis_store: RedisTapeStore, key: str) -> None:
    commit = await prepared(redis_store)
    await spoil(redis_store, TapeKeys(redis_store.namespace, "t"), key)
    before = await dumped(redis_store)
    with pytest.raises(TapeBlocked, match="another type"):
        await redis_store.commit(commit)
    assert await dumped(redis_store) == before


@pytest.mark.parametrize("key", WRITTEN)
async def test_an_append_to_a_key_of_another_type_is_refused_whole(redis_store: RedisTapeStore, key: str) -> None:
    await redis_store.append("t", say("a"))
    await spoil(redis_store, TapeKeys(redis_store.namespace, "t"), key)
    before = await dumped(redis_store)
    with pytest.raises(TapeBlocked, match="another type"):
        await redis_store.append("t", say(SAID))
    assert await dumped(redis_store) == before


@pytest.mark.parametrize("key", [*WRITTEN, "turns", "lock", "fence"])
async def test_a_reset_of_a_key_of_another_type_is_refused_whole(redis_store: RedisTapeStore, key: str) -> None:
    """Something else stands there: it is not ours to remove."""
    await redis_store.append("t", say("a"))
    await spoil(redis_store, TapeKeys(redis_store.namespace, "t"), key)
    before = await dumped(redis_store)
    with pytest.raises(TapeBlocked, match="another type"):
        await Tape("t", redis_store).reset()
    assert (await dumped(redis_store)).keys() - {key} == before.keys() - {key}


async def test_a_hand_made_entry_blocks_every_write(redis_store: RedisTapeStore) -> None:
    """Reads go on; `tape repair` is named."""
    commit = await prepared(redis_store)
    await redis_store.append("t", say("a"))
    await redis_store.server.commands.xadd(TapeKeys(redis_store.namespace, "t").tape, {"by": "hand"})
    before = await dumped(redis_store)
    for step in (
        redis_store.append("t", say("b")),
        redis_store.commit(commit),
        Tape("t", redis_store).reset(force=True),
    ):
        with pytest.raises(TapeBlocked, match="tape repair"):
            await step
    assert await dumped(redis_store) == before
    assert texts(await Tape("t", redis_store).query().all()) == ["a"]


async def test_a_hand_made_entry_that_was_removed_blocks_all_or_nothing(redis_store: RedisTapeStore) -> None:
    """The stream remembers a later id, so it takes none of ours; the sidecar that took its entry gives it back."""
    tape = Tape("t", redis_store, sidecars=[NOTES])
    notes = tape.sidecar_tape_name("notes")
    await redis_store.append(notes, say("a note"))
    async with redis_store.session("t", "run-1", 1.0) as grant:
        fork = await Fork.open(redis_store, grant, sidecars=[notes])
        await fork.append("t", say("mine"))
        await fork.append(notes, say("another note"))
        commit = await fork.prepare("completed")
    keys = TapeKeys(redis_store.namespace, notes)
    commands = redis_store.server.commands
    await commands.xdel(keys.tape, await commands.xadd(keys.tape, {"by": "hand"}, id="9999999999999-1"))
    receipt = await redis_store.commit(commit)
    assert receipt.entries == 2
    last = (await tape.query().all())[-2]
    assert (last.payload["name"], last.payload["data"]["status"]) == ("sidecar.merge", "error")
    assert texts(await Tape(notes, redis_store).query().all()) == ["a note"]
    assert broken_receipts(await tape.query().all()) == []


async def test_an_entry_that_was_taken_back_stands_in_nobodys_way(
    redis_store: RedisTapeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream remembers its id, so the next block must have a later one, also within the same millisecond."""
    notes = "t__sidecar__notes"
    commands = redis_store.server.commands
    for name in ("t", notes):
        await redis_store.append(name, say("before"))
    keys = TapeKeys(redis_store.namespace, "t")
    beside = TapeKeys(redis_store.namespace, notes)
    await commands.xdel(beside.tape, await commands.xadd(beside.tape, {"by": "hand"}, id="9999999999999-1"))
    async with redis_store.session("t", "run-1", 1.0) as grant:
        fork = await Fork.open(redis_store, grant, sidecars=[notes])
        await fork.append("t", say("mine"))
        await fork.append(notes, say("another note"))
        commit = await fork.prepare("completed")
        with monkeypatch.context() as patch:
            patch.setattr("bub_redis.storage.commit.is_unfit", lambda code: False)
            with pytest.raises(TapeBlocked):
                await redis_store.commit(commit)
        assert texts(await Tape("t", redis_store).query().all()) == ["before"]
        remembered = (await commands.xinfo_stream(keys.tape))["last-generated-id"]
        assert (await redis_store.head("t")).last_ms > int(remembered.partition(b"-")[0])
        await redis_store.commit(commit)
    entries = await Tape("t", redis_store).query().all()
    assert texts(entries) == ["before", "mine"]
    assert broken_receipts(entries) == []


async def spoil(store: RedisTapeStore, keys: TapeKeys, key: str) -> None:
    """Put something else under a key's name."""
    name = keys.frames("run-1") if key == "frames" else getattr(keys, key)
    commands = store.server.commands
    await commands.delete(name)
    if key in {"lock", "fence"}:
        await commands.execute_command("RPUSH", name, "something else")
    else:
        await commands.set(name, "something else")


async def dumped(store: RedisTapeStore) -> dict[str, bytes]:
    """All keys of the tape, whole, but for those that only say who works on it."""
    commands = store.server.commands
    names = [name async for name in commands.scan_iter(match=f"{store.namespace}:{{t}}*")]
    kept = sorted(name.decode() for name in names if not name.endswith((b":lock", b":fence", b":state")))
    return {name.rpartition("}:")[2]: await commands.dump(name) for name in kept}


@pytest.mark.parametrize("missing", ["hset", "xadd", "hdel", "del"])
async def test_a_right_that_is_taken_away_changes_nothing(failing: Failing, missing: str) -> None:
    """Within a script, each command's right is looked at when it is run."""
    store, send = failing
    await store.append("t", say("before"))
    commit = await prepared(store)
    await send("ACL", "SETUSER", "worker", "on", "nopass", "~*", "+@all", f"-{missing}")
    path = store.server.address.removeprefix("unix://")
    async with RedisTapeStore.from_url(f"unix://worker:none@{path}") as narrow:
        with pytest.raises(ConfigError, match="bub-redis doctor"):
            await narrow.commit(commit)
        with pytest.raises(ConfigError, match="bub-redis doctor"):
            await narrow.append("new", say(SAID))
    assert not await send("EXISTS", TapeKeys("bub", "new").state)
    assert texts(await Tape("t", store).query().all()) == ["before"]
    await store.commit(commit)
    assert texts(await Tape("t", store).query().all()) == ["before", SAID]
