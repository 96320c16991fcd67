"""What the fence refuses is parked for a person to look at, under a TTL and bounded."""

import pytest

from bub_redis.errors import Fenced
from bub_redis.storage import RedisTapeStore
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.parking import PARKED_BYTES, PARKED_TTL_S
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.fork import Fork


async def refused(store: RedisTapeStore, run: str, *entries: TapeEntry) -> None:
    """A fork that lost its session before it merged."""
    async with store.session("t", run, 1.0) as grant:
        fork = await Fork.open(store, grant)
        await fork.append("t", *entries)
    async with store.session("t", "other", 1.0):
        pass
    with pytest.raises(Fenced):
        await fork.merge("completed")


async def test_a_refused_overlay_is_parked_and_the_tape_left_alone(redis_store: RedisTapeStore) -> None:
    """Case 183: nothing of it is on the tape, and nothing of it is lost."""
    entries = [TapeEntry.message({"role": "user", "content": f"half \ud83d {n}"}) for n in range(3)]
    await refused(redis_store, "run/1", *entries)
    (parked,) = await redis_store.parked("t")
    assert parked.turn == "run/1"
    assert [entry.encode() for entry in parked.entries] == [entry.encode() for entry in entries]
    assert parked.dropped == 0
    assert await Tape("t", redis_store).query().all() == []
    keys = TapeKeys(redis_store.namespace, "t")
    for key in (keys.parked("run/1"), keys.parked_turns):
        assert 0 < await redis_store.server.commands.ttl(key) <= PARKED_TTL_S


async def test_a_turn_is_parked_once_however_often_it_is_refused(redis_store: RedisTapeStore) -> None:
    for n in range(3):
        await refused(redis_store, "run-1", TapeEntry.event("e", {"n": n}))
    await refused(redis_store, "run-2", TapeEntry.event("e"))
    parked = await redis_store.parked("t")
    assert [one.turn for one in parked] == ["run-1", "run-2"]
    assert [entry.payload["data"]["n"] for entry in parked[0].entries] == [2]


async def test_what_is_parked_is_bounded(redis_store: RedisTapeStore) -> None:
    big = TapeEntry.event("big", {"text": "x" * (PARKED_BYTES // 3)})
    await refused(redis_store, "run-1", big, big, big, big)
    (parked,) = await redis_store.parked("t")
    assert (len(parked.entries), parked.dropped) == (2, 2)
