"""Reset and delete on a server: turns that are open, keys that are left, sidecars that are unfit."""

import secrets

import pytest

from bub_redis.errors import Conflict, Fenced, InvalidInput, SessionBusy
from bub_redis.storage import RedisTapeStore
from bub_redis.storage.journal import Journal, Record
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.lock import FirstFrame
from bub_redis.storage.reader import Reader
from bub_redis.tape import Tape, TapeEntry, TapeQuery, TapeSidecar
from bub_redis.tape.fork import Fork
from bub_redis.tape.receipt import RESET_EVENT
from bub_redis.tape.store import Grant, Head
from bub_redis.turns import TurnClient
from tests.entries import say

NOTES = TapeSidecar("notes")


async def granted_turn(store: RedisTapeStore, turn: str) -> Grant:
    """A turn that a worker started, with a frame."""
    first_frame = FirstFrame("started", 1, b"{}", 60_000)
    grant = await store.lock.grant("t", turn, dispatch=1, secret=secrets.token_hex(8), first_frame=first_frame)
    assert isinstance(grant, Grant)
    return grant


async def test_an_open_turn_keeps_its_tape_also_while_nobody_works_on_it(redis_store: RedisTapeStore) -> None:
    """A turn between two attempts holds no lock; reset and delete name it and change nothing."""
    tape = Tape("t", redis_store)
    await tape.append(say("old"))
    grant = await granted_turn(redis_store, "m1")
    for _ in range(2):
        with pytest.raises(SessionBusy, match="m1"):
            await tape.reset()
        with pytest.raises(SessionBusy, match="m1"):
            await redis_store.delete("t")
        await redis_store.lock.release(grant, still_open=True)
    assert (await redis_store.head("t")).last == 1
    again = await redis_store.lock.grant("t", "m1", dispatch=2, secret="next")  # noqa: S106 - no password
    assert isinstance(again, Grant)
    fork = await Fork.open(redis_store, again)
    await fork.append("t", say("answered"))
    await fork.merge("completed")
    await tape.reset()
    assert (await redis_store.head("t")).generation == 1


async def test_a_fork_that_died_does_not_keep_its_tape_for_good(redis_store: RedisTapeStore) -> None:
    """Nobody goes on with the fork of a process that is gone: when its lock has expired, it is nobody's."""
    grant = await redis_store.lock.grant("t", "notebook", secret="gone")  # noqa: S106 - no password
    assert isinstance(grant, Grant)
    await redis_store.server.commands.delete(TapeKeys(redis_store.namespace, "t").lock)
    await Tape("t", redis_store).reset()
    assert (await redis_store.head("t")).generation == 1


async def test_a_forced_reset_ends_an_open_turn_by_the_fence(redis_store: RedisTapeStore) -> None:
    """Its commit is refused, its lock cannot be renewed, and its next attempt is granted the session at once."""
    grant = await granted_turn(redis_store, "m1")
    fork = await Fork.open(redis_store, grant)
    await fork.append("t", say("late"))
    await Tape("t", redis_store).reset(force=True)
    with pytest.raises(Fenced):
        await fork.merge("completed")
    assert not await redis_store.lock.renew(grant)
    again = await redis_store.lock.grant("t", "m1", dispatch=2, secret="next")  # noqa: S106 - no password
    assert isinstance(again, Grant) and again.token > grant.token + 1


async def test_after_a_forced_reset_no_turn_is_open(redis_store: RedisTapeStore) -> None:
    await granted_turn(redis_store, "m1")
    await Tape("t", redis_store).reset(force=True)
    await Tape("t", redis_store).reset()
    assert (await redis_store.head("t")).generation == 2


async def test_a_forced_reset_leaves_no_journal_that_nobody_knows_of(redis_store: RedisTapeStore) -> None:
    """Of a turn that the queue side has lost: it is named by `open` alone, and has no TTL."""
    await Tape("t", redis_store).append(say("old"))
    grant = await granted_turn(redis_store, "m1")
    await Journal(redis_store.server, redis_store.namespace, grant).write([Record.note("begun", {"generation": 0})])
    journal = TapeKeys(redis_store.namespace, "t").journal("m1")
    assert await redis_store.server.reply("EXISTS", journal)
    await redis_store.reset("t", force=True)
    assert not await redis_store.server.reply("EXISTS", journal)


async def test_a_session_that_is_reset_keeps_nothing_in_its_sidecars(client: TurnClient) -> None:
    """Large results of tools stand there."""
    tape = Tape("s", client.store, sidecars=[NOTES])
    await tape.append(say("a question"))
    await client.store.append("s__sidecar__notes", say("a secret"))
    await client.reset("s")
    assert [entry.text for entry in await TapeQuery("s__sidecar__notes", client.store).all()] == []


async def test_a_forced_reset_goes_on_from_the_very_last_receipt(
    redis_store: RedisTapeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that is merged between the look at the tape and its reset is not cut out of the chain."""
    tape = Tape("t", redis_store)
    look = Reader.head
    merges = iter(["between"])

    async def slow_look(reader: Reader, name: str) -> Head:
        seen = await look(reader, name)
        for run in merges:
            async with tape.fork_tape(run_id=run) as fork:
                await fork.append(say("merged in between"))
        return seen

    monkeypatch.setattr(Reader, "head", slow_look)
    await tape.reset(force=True)
    named = (await tape.query().all())[-1].payload
    assert named["name"] == RESET_EVENT
    assert named["data"]["digest"] == (await redis_store.head("t")).digest != ""


async def test_a_turn_that_was_merged_since_is_not_kept_as_if_it_were_an_append(redis_store: RedisTapeStore) -> None:
    """Its receipt would stand in the new generation with numbers of the old one."""
    tape = Tape("t", redis_store)
    seen = await redis_store.head("t")
    async with tape.fork_tape() as fork:
        await fork.append(say("merged"))
    with pytest.raises(Conflict, match="merged"):
        await redis_store.reset("t", seen=seen)
    assert len(await tape.query().all()) == 2


async def test_no_key_with_a_deleted_tapes_name_is_left(redis_store: RedisTapeStore) -> None:
    """Case 146: nothing of it, whatever it belonged to."""
    tape = Tape("t", redis_store, sidecars=[NOTES])
    notes = tape.sidecar_tape_name("notes")
    await tape.ensure_bootstrap_anchor()
    await redis_store.append(notes, TapeEntry.anchor("a"), TapeEntry.event("note"))
    grant = await granted_turn(redis_store, "m/1")
    fork = await Fork.open(redis_store, grant)
    await fork.append("t", say("a"))
    await fork.merge("completed")
    async with redis_store.session("t", "parks", 1.0) as lost:
        parked = await Fork.open(redis_store, lost)
        await parked.append("t", say("parked"))
        await tape.reset(force=True)
        with pytest.raises(Fenced):
            await parked.merge("completed")
    commands = redis_store.server.commands
    keys = TapeKeys(redis_store.namespace, "t")
    await commands.xadd(keys.journal("m/1"), {"left": "over"})
    there = {name.decode() for name in await commands.keys(f"{redis_store.namespace}:*")}
    expected = {keys.tape, keys.turns, keys.fence, keys.state, keys.frames("m/1"), keys.parked("parks")}
    assert expected <= there
    order: list[str] = []

    async def guard() -> None:
        order.append("guard")
        assert await commands.exists(keys.tape)

    async def forget() -> None:
        order.append("forget")
        left = {name.decode() for name in await commands.keys(f"{redis_store.namespace}:*")}
        assert left == {keys.lock, f"{redis_store.namespace}:tapes"}

    await redis_store.delete("t", guard=guard, forget=forget)
    assert order == ["guard", "forget"]
    assert await commands.keys(f"{redis_store.namespace}:*") == []


async def test_a_delete_that_is_not_allowed_removes_nothing(redis_store: RedisTapeStore) -> None:
    """The queue side's check runs under the lock, before the first key goes."""
    await redis_store.append("t", say("a"))

    async def guard() -> None:
        raise SessionBusy("3 turns of session 't' wait")

    with pytest.raises(SessionBusy, match="wait"):
        await redis_store.delete("t", guard=guard)
    assert await redis_store.list_tapes() == ["t"]
    assert (await redis_store.head("t")).last == 1
    await Tape("t", redis_store).reset()  # and the session is free again


async def test_a_delete_that_lost_its_session_removes_no_entry(redis_store: RedisTapeStore) -> None:
    """The fence decides here too: whoever took the session meanwhile keeps what it has."""
    await redis_store.append("t", say("a"))

    async def take_the_session() -> None:
        await Tape("t", redis_store).reset(force=True)

    with pytest.raises(Fenced):
        await redis_store.delete("t", guard=take_the_session)
    assert (await redis_store.head("t")).last == 2
    assert await redis_store.list_tapes() == ["t"]


async def test_other_tapes_stay(redis_store: RedisTapeStore) -> None:
    for name in ("t", "t2", "t:tape", "{t}"):
        await redis_store.append(name, say(name))
    await redis_store.delete("t")
    assert await redis_store.list_tapes() == ["t2", "t:tape", "{t}"]


async def test_a_sidecars_tape_is_not_deleted_by_itself(redis_store: RedisTapeStore) -> None:
    with pytest.raises(InvalidInput, match="with its owner"):
        await redis_store.delete("t__sidecar__notes")


async def test_deleting_what_is_not_there_is_done(redis_store: RedisTapeStore) -> None:
    await redis_store.delete("never")
    assert await redis_store.server.commands.keys(f"{redis_store.namespace}:*") == []
