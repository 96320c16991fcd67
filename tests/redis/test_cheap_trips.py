"""What saves a turn round trips and work keeps what it stands for."""

import asyncio
import dataclasses
import secrets

import pytest
from redis.exceptions import ResponseError

from bub_redis.settings import Settings, load_settings
from bub_redis.storage.client import RedisServer
from bub_redis.storage.heads import NEWEST_ENTRIES, with_newest
from bub_redis.storage.lock import Committed
from bub_redis.storage.store import RedisTapeStore
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.fork import Fork
from bub_redis.tape.receipt import broken_receipts
from bub_redis.tape.store import Grant
from bub_redis.testing import EmbeddedServer
from bub_redis.turns.attempt import Attempt, Beat
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.running import RunningTurn
from worker.keeper import LeaseKeeper


def say(text: str) -> TapeEntry:
    return TapeEntry.message({"role": "user", "content": text})


async def granted(store: RedisTapeStore, tape: str) -> Grant:
    holder = secrets.token_hex(4)
    grant = await store.lock.grant(tape, holder, secret=secrets.token_hex(4), reads_newest=True)
    assert not isinstance(grant, Committed)
    return grant


async def test_a_connection_that_the_server_closed_is_replaced_before_it_is_used() -> None:
    with EmbeddedServer(appendonly=False) as own:
        async with RedisServer(own.url, retries=0) as server:
            await server.commands.ping()
            own.restart()
            for _ in range(2):
                await asyncio.sleep(0)  # noqa: TID251 - the loop hears of it, as it does between two commands
            assert await server.commands.ping()


async def test_connections_go_to_those_who_wait_first(server: EmbeddedServer) -> None:
    """With fewer connections than tasks every command is answered, and all connections come back."""
    async with RedisServer(server.url) as opened:
        pool = opened.commands.connection_pool
        pool.max_connections = 2
        assert await asyncio.gather(*(opened.commands.echo(str(n)) for n in range(50))) == [
            b"%d" % n for n in range(50)
        ]
        first, second = await pool.get_connection(), await pool.get_connection()
        waiting = asyncio.create_task(pool.get_connection())
        await asyncio.sleep(0)  # noqa: TID251 - a step of the event loop, not a time
        await pool.release(first)
        assert await waiting is first
        for connection in (first, second):
            await pool.release(connection)


@pytest.mark.parametrize("appended", [0, 1, 3])
async def test_what_a_grant_tells_is_what_the_tape_holds(redis_store: RedisTapeStore, appended: int) -> None:
    """Head and chain from a grant are those that reading gives, also where others appended behind the last receipt."""
    tape = Tape("t", redis_store)
    await tape.ensure_bootstrap_anchor()
    async with tape.fork_tape() as fork:
        await fork.append(say("one"))
        await tape.append(say("beside it"))
    await tape.append(*(say(str(number)) for number in range(appended)))
    grant = await granted(redis_store, "t")
    head = await redis_store.head("t")
    assert grant.head == head and head.anchor and not grant.has_journal
    assert len(grant.head.newest) == head.last
    told, read = await redis_store.chain("t", grant.head), await redis_store.chain("t", head)
    assert told.hexdigest() == read.hexdigest()
    opened = await Fork.open(redis_store, grant, head=grant.head)
    await opened.append("t", say("two"))
    await opened.merge("completed")
    assert broken_receipts([entry async for entry in redis_store.oldest_first("t")]) == []


async def filled(store: RedisTapeStore, entries: int) -> Tape:
    """A tape whose last anchor stands so many entries before its end."""
    tape = Tape("t", store)
    await tape.append(say("before"))
    await tape.handoff(name="start")
    await tape.append(*(say(str(number)) for number in range(entries)))
    return tape


@pytest.mark.parametrize("entries", [1, NEWEST_ENTRIES - 2, NEWEST_ENTRIES, NEWEST_ENTRIES * 3])
async def test_what_came_with_a_grant_is_what_is_read(redis_store: RedisTapeStore, entries: int) -> None:
    """However far back the anchor stands, from either end, and whatever others append meanwhile."""
    tape = await filled(redis_store, entries)
    grant = await granted(redis_store, "t")
    assert grant.head is not None and len(grant.head.newest) == min(entries + 3, NEWEST_ENTRIES)
    await tape.append(say("beside it"))
    plain = dataclasses.replace(grant.head, newest=())
    everything, since, limited = tape.query(), tape.query().last_anchor(), tape.query().last_anchor().limit(2)
    for query in (everything, since, limited, since.query("0"), since.kinds("event")):
        told = await redis_store.fetch_until(query, grant.head)
        assert told == await redis_store.fetch_until(query, plain) and told[:1]
    backwards = [[entry async for entry in redis_store.newest_first(since, head)] for head in (grant.head, plain)]
    assert backwards[0] == backwards[1] and len(backwards[0]) == entries + 1


async def test_a_grant_does_not_bring_what_was_reset_while_it_was_read(redis_store: RedisTapeStore) -> None:
    await filled(redis_store, 3)
    grant = await granted(redis_store, "t")
    assert grant.head is not None
    page = list(reversed(grant.head.newest))
    head = dataclasses.replace(grant.head, newest=())
    assert with_newest(head, page, b"0").newest == grant.head.newest
    for read, generation in ((page, b"1"), (page[1:], b"0"), ([], b"0"), (ResponseError("WRONGTYPE"), b"0")):
        assert with_newest(head, read, generation).newest == ()


async def test_a_fork_that_was_given_all_of_a_slice_goes_on_seeing_it(redis_store: RedisTapeStore) -> None:
    """As one that has read it does: the tape as it was when the fork was opened, and nothing of a later generation."""
    tape = await filled(redis_store, 2)
    async with tape.fork_tape(merge_back=False) as fork:
        await tape.reset(force=True)
        await tape.append(say("new"))
        assert [entry.text for entry in await fork.query().kinds("message").last_anchor().all()] == ["0", "1"]


async def test_a_fork_reads_its_parent_once_and_sees_its_own_entries(redis_store: RedisTapeStore) -> None:
    tape = Tape("t", redis_store)
    await tape.handoff(name="start")
    await tape.append(say("one"))
    async with tape.fork_tape() as fork:
        question = fork.query().last_anchor().kinds("message")
        assert [entry.text for entry in await question.all()] == ["one"]
        await tape.append(say("beside it"))
        await fork.append(say("two"))
        assert [entry.text for entry in await question.all()] == ["one", "two"]
        await fork.handoff(name="next")
        assert [entry.text for entry in await question.all()] == []


async def test_an_entry_that_was_just_written_reads_as_it_is_stored(redis_store: RedisTapeStore) -> None:
    """A change to what an append returned changes nothing stored, and is stored if the entry is appended again."""
    (entry,) = await redis_store.append("t", TapeEntry.message({"content": "a", "pair": (1, 2)}, run_id="r"))
    assert entry.payload == {"content": "a", "pair": [1, 2]} and entry.meta == {"run_id": "r"}
    assert isinstance(entry.payload, dict)
    entry.payload["content"] = "b"
    await redis_store.append("t", entry)
    assert [found.text async for found in redis_store.oldest_first("t")] == ["a", "b"]


class _SlowQueue(TurnQueue):
    """Answers a beat for an attempt that is started between the question and the answer."""

    starting: RunningTurn

    async def beat(self, attempts: list[Attempt], worker: str) -> list[Beat]:  # type: ignore[override]
        self.starting.started = True
        return [Beat.LOST for _ in attempts]


async def test_an_attempt_that_starts_during_a_beat_is_not_lost(settings: Settings) -> None:
    """The queue side did not know it when it was asked: that it is unknown says nothing of it."""
    keeper = LeaseKeeper(settings, "w")
    running = RunningTurn(Attempt("t/1", 1, "w"))
    async with RedisServer(settings.queue_address) as server:
        queue = _SlowQueue(server, load_settings(redis_url=settings.queue_address))
        queue.starting = running
        with keeper.keep(running):
            await keeper.look(queue)
            assert running.reason is None
            await keeper.look(queue)
            assert running.reason is not None
