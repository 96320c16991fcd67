"""The session lock: who gets it, and that nobody removes another one's."""

import asyncio
import os
import signal
import time

import pytest

from bub_redis.errors import SessionBusy
from bub_redis.storage import RedisTapeStore, lock
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape import Tape
from bub_redis.tape.store import Grant
from bub_redis.testing import EmbeddedServer


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


@pytest.mark.parametrize("when", ["taking", "holding"])
async def test_nobody_who_wants_to_leave_is_kept_by_a_server_that_hangs(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """What it holds for them expires by its TTL; a command would be tried for twenty seconds."""
    monkeypatch.setattr(lock, "_LAST_WORD_S", 0.1)
    with EmbeddedServer(appendonly=False) as server:
        assert server.pid is not None
        async with RedisTapeStore.from_url(server.url) as store:
            begun = asyncio.Event()

            async def hold() -> None:
                async with Tape("t", store).fork_tape(merge_back=False):
                    begun.set()
                    await asyncio.Event().wait()

            if when == "taking":
                await store.head("t")
                os.kill(server.pid, signal.SIGSTOP)
                begun.set()
            work = asyncio.create_task(hold())
            await begun.wait()
            os.kill(server.pid, signal.SIGSTOP)
            await asyncio.sleep(0)  # noqa: TID251 - a step of the event loop, not a time
            began = time.monotonic()
            work.cancel()
            await asyncio.wait({work})
            assert time.monotonic() - began < 2
            os.kill(server.pid, signal.SIGCONT)
