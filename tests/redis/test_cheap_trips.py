"""What saves a turn round trips and work keeps what it stands for."""

import asyncio
import dataclasses
import secrets

import pytest
from redis.exceptions import ResponseError

from bub_redis.errors import SessionBusy, TapeBlocked
from bub_redis.settings import Settings, load_settings
from bub_redis.storage.client import RedisServer
from bub_redis.storage.contexts import MOST_BYTES, with_context
from bub_redis.storage.heads import FIRST_PAGE_ENTRIES, Page
from bub_redis.storage.keys import TapeKeys
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
    grant = await store.lock.grant(tape, secrets.token_hex(4), secret=secrets.token_hex(4), reads_context=True)
    assert not isinstance(grant, Committed)
    await store.lock.release(grant)
    return grant


async def context_of(store: RedisTapeStore, tape: str) -> Page | None:
    """What a grant brings of the tape's context."""
    grant = await granted(store, tape)
    assert grant.head is not None
    return grant.head.context


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
    await tape.read_messages()
    grant = await redis_store.lock.grant("t", "run", secret="one", reads_context=True)  # noqa: S106 - no password
    assert isinstance(grant, Grant) and grant.head is not None and grant.head.context
    head = await redis_store.head("t")
    assert grant.head == head and head.anchor and not grant.has_journal
    told, read = await redis_store.chain("t", grant.head), await redis_store.chain("t", head)
    assert told.hexdigest() == read.hexdigest()
    opened = await Fork.open(redis_store, grant, head=grant.head)
    await opened.append("t", say("two"))
    await opened.merge("completed")
    assert broken_receipts([entry async for entry in redis_store.oldest_first("t")]) == []


async def filled(store: RedisTapeStore, entries: int) -> Tape:
    """A tape of which so many entries stand behind the last anchor."""
    tape = Tape("t", store)
    await tape.append(say("before"))
    await tape.handoff(name="start")
    await tape.append(*(say(str(number)) for number in range(entries - 1)))
    return tape


@pytest.mark.parametrize("entries", [1, 2, FIRST_PAGE_ENTRIES - 1, FIRST_PAGE_ENTRIES, FIRST_PAGE_ENTRIES * 3])
async def test_a_context_that_was_read_comes_with_the_next_grant(redis_store: RedisTapeStore, entries: int) -> None:
    """Where it is short; and every answer is the one that reading gives, whatever others append meanwhile."""
    tape = await filled(redis_store, entries)
    assert await context_of(redis_store, "t") is None
    assert len(await tape.query().last_anchor().all()) == entries
    grant = await granted(redis_store, "t")
    assert grant.head is not None
    assert (grant.head.context is not None) == (entries < FIRST_PAGE_ENTRIES)
    await tape.append(say("beside it"))
    plain = dataclasses.replace(grant.head, context=None)
    everything, since, limited = tape.query(), tape.query().last_anchor(), tape.query().last_anchor().limit(2)
    for query in (everything, since, limited, since.query("0"), since.kinds("event")):
        assert await redis_store.fetch_until(query, grant.head) == await redis_store.fetch_until(query, plain)
    backwards = [[entry async for entry in redis_store.newest_first(since, head)] for head in (grant.head, plain)]
    assert backwards[0] == backwards[1] and len(backwards[0]) == entries


async def test_a_context_is_asked_for_again_where_it_begins_elsewhere_now(redis_store: RedisTapeStore) -> None:
    tape = await filled(redis_store, 3)
    await tape.read_messages()
    await tape.handoff(name="next")
    assert await context_of(redis_store, "t") is None
    await tape.read_messages()
    context = await context_of(redis_store, "t")
    assert context is not None and len(context) == 1


async def test_an_anchor_that_is_the_last_entry_begins_an_empty_context(redis_store: RedisTapeStore) -> None:
    tape = Tape("t", redis_store)
    await tape.append(TapeEntry.anchor("start"))
    await tape.read_messages()
    assert await context_of(redis_store, "t") == ()


async def test_a_large_context_is_read_page_by_page(redis_store: RedisTapeStore) -> None:
    """While the session is renewed: on a slow line it may take longer than a lease."""
    tape = await filled(redis_store, 3)
    await tape.read_messages()
    await tape.append(say("x" * MOST_BYTES))
    assert await context_of(redis_store, "t") is not None  # others may append what they like
    await tape.read_messages()
    assert await context_of(redis_store, "t") is None


async def test_who_waits_for_a_session_reads_nothing(redis_store: RedisTapeStore) -> None:
    tape = await filled(redis_store, 3)
    await tape.read_messages()
    commands = redis_store.server.commands

    async def reads() -> int:
        return int((await commands.info("commandstats")).get("cmdstat_xrange", {}).get("calls", 0))

    async with tape.fork_tape(merge_back=False):
        before = await reads()
        with pytest.raises(SessionBusy):
            async with tape.fork_tape(wait_s=0.3):
                pass
        assert await reads() - before == 1


async def test_a_grant_brings_no_context_of_another_generation(redis_store: RedisTapeStore) -> None:
    tape = await filled(redis_store, 3)
    await tape.read_messages()
    grant = await granted(redis_store, "t")
    assert grant.head is not None
    context, head = grant.head.context, dataclasses.replace(grant.head, context=None)
    assert context and with_context(head, head.anchor, context, b"0").context == context
    refused = ResponseError("WRONGTYPE")
    for page, generation in ((context, b"1"), (context[:-1], b"0"), ([], b"0"), (refused, b"0"), (context, None)):
        assert with_context(head, head.anchor, page, generation).context is None
    assert with_context(head, "1-1", context, b"0").context is None


async def test_a_fork_that_was_given_its_context_goes_on_seeing_it(redis_store: RedisTapeStore) -> None:
    """As one that has read it does: the tape as it was when the fork was opened, and nothing of a later generation."""
    tape = await filled(redis_store, 3)
    await tape.read_messages()
    async with tape.fork_tape(merge_back=False) as fork:
        await tape.reset(force=True)
        await tape.append(say("new"))
        assert [entry.text for entry in await fork.query().kinds("message").last_anchor().all()] == ["0", "1"]


@pytest.mark.parametrize("field", ["anchor", "receipt"])
@pytest.mark.parametrize("value", ["junk", "9-9-9", "+", "9 9"])
async def test_an_id_that_is_none_blocks_the_tape(redis_store: RedisTapeStore, field: str, value: str) -> None:
    """What blocks a tape is an outage to turns, and no failure of theirs."""
    tape = await filled(redis_store, 3)
    async with tape.fork_tape() as fork:
        await fork.append(say("merged"))
    await tape.read_messages()
    await redis_store.server.ask(("HSET", TapeKeys(redis_store.namespace, "t").state, field, value))
    with pytest.raises(TapeBlocked, match="repair"):
        async with tape.fork_tape() as fork:
            await fork.read_messages()
    with pytest.raises(TapeBlocked, match="repair"):
        await redis_store.lock.grant("t", "turn", dispatch=1, secret="one")  # noqa: S106 - no password
    assert any(repair.needed for repair in await redis_store.repair("t"))  # which needs the session
    async with tape.fork_tape() as fork:
        assert await fork.read_messages()


async def test_a_receipt_that_is_none_blocks_the_tape(redis_store: RedisTapeStore) -> None:
    tape = await filled(redis_store, 3)
    await tape.read_messages()
    head = await redis_store.head("t")
    await redis_store.server.ask(("HSET", TapeKeys(redis_store.namespace, "t").state, "receipt", head.last_id))
    with pytest.raises(TapeBlocked, match="repair"):
        async with tape.fork_tape():
            pass


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
