"""The session lock: who gets it, and that nobody removes another one's."""

import asyncio

from bub_redis.errors import SessionBusy
from bub_redis.storage import RedisTapeStore
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape.store import Grant


async def granted(store: RedisTapeStore, holder: str) -> Grant:
    grant = await store.lock.grant("t", holder, secret=f"secret of {holder}")
    assert isinstance(grant, Grant)
    return grant


async def expired(store: RedisTapeStore) -> None:
    await store.server.commands.delete(TapeKeys(store.namespace, "t").lock)


async def test_a_release_leaves_the_lock_of_another(redis_store: RedisTapeStore) -> None:
    """Case 175: it compares and deletes in one step."""
    slow = await granted(redis_store, "slow")
    await expired(redis_store)
    quick = await granted(redis_store, "quick")
    await redis_store.lock.release(slow)
    assert await redis_store.server.commands.get(TapeKeys(redis_store.namespace, "t").lock) == quick.lock.encode()
    assert await redis_store.lock.renew(quick)


async def test_a_lock_that_was_taken_over_cannot_be_renewed(redis_store: RedisTapeStore) -> None:
    """Case 175."""
    slow = await granted(redis_store, "slow")
    await expired(redis_store)
    quick = await granted(redis_store, "quick")
    assert not await redis_store.lock.renew(slow)
    await redis_store.lock.release(quick)
    assert not await redis_store.lock.renew(slow)


async def test_an_abandoned_lock_is_taken_over_by_one(redis_store: RedisTapeStore) -> None:
    """Case 175: both find it expired at the same moment."""
    await granted(redis_store, "gone")
    await expired(redis_store)
    names = [f"run-{n}" for n in range(10)]
    outcomes = await asyncio.gather(*(granted(redis_store, name) for name in names), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(Grant) == 1
    assert [type(outcome) for outcome in outcomes].count(SessionBusy) == 9
