"""A store is opened once and closed for good, whatever happens in between."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bub_redis.errors import StoreClosed
from bub_redis.storage import RedisServer, RedisTapeStore
from bub_redis.storage.keys import known_tapes
from bub_redis.tape import Tape, TapeEntry, TapeQuery
from bub_redis.tape.fork import Fork
from bub_redis.testing import EmbeddedServer, wait_until
from tests.redis.proxy import proxied


async def connections(store: RedisTapeStore) -> int:
    """How many connections the server has."""
    return len(await store.server.commands.client_list())


async def test_use_after_close_is_a_clear_error(server: EmbeddedServer, namespace: str) -> None:
    """Case 172: no hang, no reconnect, and nothing left that would complain later."""
    async with RedisTapeStore.from_url(server.url, namespace=namespace) as store:
        await store.append("t", TapeEntry.event("e"))
        async with store.session("t", "r", 1.0) as grant:
            fork = await Fork.open(store, grant)
            await fork.append("t", TapeEntry.event("e"))
            commit = await fork.prepare("completed")
    tape = Tape("t", store)
    uses: list[Callable[[], Awaitable[object]]] = [
        store.list_tapes,
        lambda: store.append("t", TapeEntry.event("e")),
        lambda: store.append("new", TapeEntry.event("e")),
        lambda: store.fetch_all(TapeQuery("t", store)),
        lambda: store.commit(commit),
        lambda: store.reset("t"),
        lambda: store.reset("t", force=True),
        lambda: store.delete("t"),
        lambda: store.parked("t"),
        tape.info,
        tape.ensure_bootstrap_anchor,
    ]
    for use in uses:
        async with asyncio.timeout(2):
            with pytest.raises(StoreClosed, match="closed"):
                await use()
    await store.aclose()


async def test_a_fork_that_outlives_its_store_says_so(server: EmbeddedServer, namespace: str) -> None:
    store = RedisTapeStore.from_url(server.url, namespace=namespace)
    with pytest.raises(StoreClosed):
        async with Tape("t", store).fork_tape() as fork:
            await fork.append(TapeEntry.event("e"))
            await store.aclose()


async def test_no_connection_is_left(server: EmbeddedServer, redis_store: RedisTapeStore, namespace: str) -> None:
    """Case 12: also where the block fails."""
    before = await connections(redis_store)
    with pytest.raises(ZeroDivisionError):
        async with RedisTapeStore.from_url(server.url, namespace=namespace) as store:
            await asyncio.gather(*(store.append(f"t{n}", TapeEntry.event("e")) for n in range(10)))
            assert await connections(redis_store) > before
            raise ZeroDivisionError

    async def gone() -> bool:
        return await connections(redis_store) <= before

    await wait_until(gone, "the connections to be closed")


async def test_what_is_noted_in_the_background_is_over_when_a_store_is_closed(
    server: EmbeddedServer, namespace: str
) -> None:
    async with RedisTapeStore.from_url(server.url, namespace=namespace) as store:
        for _ in range(20):
            await store.append("t", TapeEntry.event("e"))
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@pytest.mark.parametrize("rounds", range(6))
async def test_a_cancellation_while_a_session_is_left_is_not_lost(redis_store: RedisTapeStore, rounds: int) -> None:
    """Leaving it ends the task that renews it, which is no reason to take the caller's cancellation for that task's."""
    entered, inside, went_on = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        async with redis_store.session("t", "run", 1.0):
            entered.set()
            await inside.wait()
        went_on.append(True)
        await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await entered.wait()
    inside.set()
    for _ in range(rounds):
        await asyncio.sleep(0)  # noqa: TID251 - a step of the event loop, not a time
    working.cancel()
    await asyncio.wait({working}, timeout=5.0)
    assert working.cancelled() and not went_on


async def test_a_store_is_closed_also_where_the_list_of_tapes_is_refused(
    server: EmbeddedServer, namespace: str
) -> None:
    """What is noted in the background only puts the list in order."""
    store = RedisTapeStore.from_url(server.url, namespace=namespace)
    for _ in range(2):
        await store.append("t", TapeEntry.event("e"))
    await store.server.reply("SET", known_tapes(namespace), "of another type")
    await store.append("t", TapeEntry.event("e"))
    await store.aclose()
    with pytest.raises(StoreClosed):
        await store.append("t", TapeEntry.event("e"))


async def test_a_place_in_the_list_that_was_refused_is_noted_with_the_next_commit(
    server: EmbeddedServer, namespace: str, tmp_path: Path
) -> None:
    """Another process may have deleted the tape, and taken it off the list, just before it was committed to anew."""
    async with (
        proxied(server, tmp_path) as proxy,
        RedisTapeStore.from_url(proxy.url, namespace=namespace) as store,
        RedisTapeStore.from_url(server.url, namespace=namespace) as other,
    ):
        for tape in ("a", "b"):
            await store.append(tape, TapeEntry.event("e"))
        await other.delete("a")
        proxy.answer(known_tapes(namespace).encode(), b"-MISCONF Errors writing to the AOF file\r\n")
        await store.append("a", TapeEntry.event("e"))
        await store.settle()
        assert proxy.struck == 1
        assert await other.list_tapes() == ["b"]
        await store.append("b", TapeEntry.event("e"))
        await store.settle()
        assert await other.list_tapes() == ["a", "b"]


def test_a_client_belongs_to_one_event_loop(server: EmbeddedServer) -> None:
    """A second loop is told so, and the first one goes on."""

    async def ping(client: RedisServer) -> bool:
        return bool(await client.commands.ping())

    client = RedisServer(server.url)
    with asyncio.Runner() as first:
        assert first.run(ping(client))
        with asyncio.Runner() as second, pytest.raises(StoreClosed, match="belong to another event loop"):
            second.run(ping(client))
        assert first.run(ping(client))
        first.run(client.aclose())
