"""The keys of a tape: where they lie, and which of them end by themselves."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from bub_redis.errors import Fenced
from bub_redis.storage import RedisTapeStore
from bub_redis.storage.journal import Journal, Record
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.lock import FirstFrame
from bub_redis.tape import Tape, TapeSidecar
from bub_redis.tape.fork import Fork
from bub_redis.tape.receipt import broken_receipts
from bub_redis.tape.store import Grant
from tests.entries import say, texts

NOTES = TapeSidecar("notes")
SHORT_LIVED = {"lock", "batches:0", "batches:1", "frames:turn-1", "parked", "parked:run-1"}


async def lived(store: RedisTapeStore, name: str) -> Tape:
    """A tape with every kind of key that there is: it saw appends, merges, a reset, a refused merge and a turn."""
    tape = Tape(name, store, sidecars=[NOTES])
    await tape.ensure_bootstrap_anchor()
    await tape.append(say("direct"))
    await tape.reset()
    async with store.session(name, "run-1", 1.0) as grant:
        late = await Fork.open(store, grant)
        await late.append(name, say("late"))
    async with tape.fork_tape(run_id="run-2") as fork:
        await fork.append(say("merged"))
        await fork.store.append(fork.sidecar_tape_name("notes"), say("a note"))
    with pytest.raises(Fenced):
        await late.merge("completed")
    first_frame = FirstFrame("started", 1, b"{}", 60_000)
    turn = await store.lock.grant(name, "turn-1", dispatch=1, secret=secrets.token_hex(8), first_frame=first_frame)
    assert isinstance(turn, Grant)
    await Journal(store.server, store.namespace, turn).write([Record.note("begun", {})])
    await store.settle()
    return tape


async def found(store: RedisTapeStore) -> AsyncIterator[str]:
    async for key in store.server.commands.scan_iter(f"{store.namespace}:*"):
        yield key.decode()


async def test_all_keys_of_a_tape_share_a_slot_and_two_tapes_do_not(redis_store: RedisTapeStore) -> None:
    """Case 143: a script may take them all on a cluster, and tapes spread over its nodes."""
    for name in ("first", "a{second}"):
        await lived(redis_store, name)
    keys = [key async for key in found(redis_store)]
    of_no_tape = [key for key in keys if "{" not in key]
    assert of_no_tape == [f"{redis_store.namespace}:tapes"]
    slots = {tag: {key_slot(key.encode()) for key in keys if f"{{{tag}}}" in key} for tag in ("first", "a%7Bsecond%7D")}
    assert all(len(found_slots) == 1 for found_slots in slots.values())
    assert slots["first"] != slots["a%7Bsecond%7D"]
    assert sum("{first}" in key for key in keys) * 2 + 1 == len(keys)


async def test_only_what_may_be_lost_ends_by_itself(redis_store: RedisTapeStore) -> None:
    """Case 145."""
    await lived(redis_store, "t")
    own = f"{redis_store.namespace}:{{t}}:"
    short_lived = {
        key.removeprefix(own) async for key in found(redis_store) if await redis_store.server.commands.pttl(key) >= 0
    }
    # Which of the two hashes of batches there are is a matter of the moment.
    assert short_lived | {"batches:0", "batches:1"} == SHORT_LIVED


async def test_what_ends_by_itself_decides_no_write(redis_store: RedisTapeStore) -> None:
    """Case 145: whatever has expired when it comes, a commit is made, whole, once."""
    tape = Tape("t", redis_store)
    await tape.append(say("before"))
    async with redis_store.session("t", "run-1", 1.0) as grant:
        fork = await Fork.open(redis_store, grant)
        await fork.append("t", say("mine"))
        commit = await fork.prepare("completed")
        await expire(redis_store.server.commands, TapeKeys(redis_store.namespace, "t"))
        first = await redis_store.commit(commit)
        await expire(redis_store.server.commands, TapeKeys(redis_store.namespace, "t"))
        assert await redis_store.commit(commit) == first
    assert texts(await tape.query().all()) == ["before", "mine"]
    assert broken_receipts(await tape.query().all()) == []


async def expire(commands: Redis, keys: TapeKeys) -> None:
    await asyncio.gather(*(commands.delete(key) for key in (keys.lock, *keys.batches, keys.frames("run-1"))))
