"""Repair: a tape that refuses every write can be written again, nothing is thrown away, and what is gone stays told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bub_redis.errors import InvalidInput, SessionBusy, TapeBlocked
from bub_redis.storage import RedisTapeStore
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.script import Script
from bub_redis.storage.survey import Repair
from bub_redis.tape import SpillStore, Tape, TapeEntry
from bub_redis.tape.entry import StoredEntry
from bub_redis.tape.receipt import verify_entries
from bub_redis.tape.sidecar import sidecar_tape_name
from bub_redis.tape.stream_id import StreamId
from bub_redis.testing import EmbeddedServer
from tests.entries import say, texts
from tests.redis.proxy import proxied

SPILL = SpillStore(threshold_tokens=1)


@pytest.fixture
async def tape(redis_store: RedisTapeStore) -> Tape:
    """A tape with anchors, receipts and a spilled result; its last entry is a receipt."""
    tape = Tape("t", redis_store, sidecars=[SPILL])
    await tape.ensure_bootstrap_anchor()
    for topic in ("orders", "parcels", "orders"):
        async with tape.fork_tape(run_id=f"run-{topic}-{len(await tape.query().all())}") as fork:
            await fork.append(say(f"about {topic}"))
            await fork.handoff(name=topic, state={"topic": topic})
            await fork.append_event("run", {"usage": {"total_tokens": 7}})
            await SPILL.spill(fork, "a long result " * 40, tool="report", run_id="r")
    # What is noted beside commits is noted now, and not between two looks at the keys.
    await redis_store.settle()
    return tape


@pytest.fixture
def keys(redis_store: RedisTapeStore) -> TapeKeys:
    return TapeKeys(redis_store.namespace, "t")


async def dumped(store: RedisTapeStore, *patterns: str) -> dict[str, bytes]:
    """What every key of the namespace holds, but for locks and fences."""
    commands = store.server.commands
    found = [key.decode() async for key in commands.scan_iter(f"{store.namespace}:*")]
    return {key: await commands.dump(key) for key in found if not key.endswith((":lock", ":fence"))}


async def repaired(store: RedisTapeStore) -> list[Repair]:
    """Survey and repair: both say the same, and afterwards there is nothing left."""
    surveyed = await store.survey("t")
    found = await store.repair("t")
    assert found == surveyed
    assert not any(repair.needed for repair in await store.survey("t"))
    return found


async def writes(tape: Tape) -> None:
    """Both ways to write work, and what they wrote is read back."""
    await tape.append(say("appended"))
    async with tape.fork_tape() as fork:
        await fork.append(say("merged"))
    assert texts(await tape.query().all())[-2:] == ["appended", "merged"]


async def test_a_sound_tape_is_left_as_it_is(redis_store: RedisTapeStore, tape: Tape) -> None:
    before = await dumped(redis_store)
    assert [(found.tape, found.needed) for found in await repaired(redis_store)] == [
        ("t", False),
        ("t__sidecar__spill", False),
    ]
    assert await dumped(redis_store) == before


async def test_a_tape_after_a_reset_is_sound(redis_store: RedisTapeStore, tape: Tape) -> None:
    await tape.reset()
    await tape.append(say("anew"))
    assert not any(found.needed for found in await repaired(redis_store))


async def test_a_survey_changes_nothing(redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys) -> None:
    await redis_store.server.commands.xadd(keys.tape, {"by": "hand"})
    before = await dumped(redis_store)
    (found, _) = await redis_store.survey("t")
    assert found == Repair("t", foreign=1)
    assert await dumped(redis_store) == before


async def test_entries_of_others_are_set_aside(redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys) -> None:
    """Whatever their fields, in the middle and at the end; the entries of the tape do not change."""
    commands = redis_store.server.commands
    before = [(entry.id, entry.encode()) for entry in await tape.query().all()]
    await commands.xadd(keys.tape, {"by": "hand", "why": "\x00"}, id="*")
    await commands.xadd(keys.tape, dict(zip(StoredEntry._fields, say("no number").encode(), strict=True)))
    await commands.xadd(keys.tape, {"kind": "event", "payload": "{", "meta": "{}", "date": ""}, id="99999999999999-99")
    with pytest.raises(TapeBlocked, match="tape repair"):
        await tape.append(say("refused"))
    assert (await repaired(redis_store))[0] == Repair("t", foreign=3, rebuilt=("last id",))
    assert [(entry.id, entry.encode()) for entry in await tape.query().all()][:-1] == before
    aside = [fields for _, fields in await commands.xrange(keys.damaged)]
    assert aside[0][b"why"] == b"\x00" and aside[2][b"id"] == b"99999999999999-99"
    await writes(tape)
    assert (await verify_entries(redis_store.oldest_first("t"))).intact


async def test_an_entry_of_very_many_fields_is_set_aside_whole(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys
) -> None:
    """Lua takes some 8,000 values at once."""
    many: Any = {str(number): "x" for number in range(9_000)}
    await redis_store.server.commands.xadd(keys.tape, many)
    assert (await repaired(redis_store))[0].foreign == 1
    aside = [fields for _, fields in await redis_store.server.commands.xrange(keys.damaged)]
    assert len({fields[b"id"] for fields in aside}) == 1
    assert {name for fields in aside for name in fields} - {b"id"} == {name.encode() for name in many}


async def test_entries_by_hand_that_look_like_ours_are_told_by_their_numbers(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys
) -> None:
    """One number too large, one too small: neither has others taken for foreign."""
    commands = redis_store.server.commands
    end = (await redis_store.head("t")).last_id
    ms, _, number = end.partition("-")
    fields: Any = dict(zip(StoredEntry._fields, say("by hand").encode(), strict=True))
    await commands.xadd(keys.tape, fields, id=f"{int(ms) + 1}-{int(number) + 900}")
    await commands.xadd(keys.tape, fields, id=f"{int(ms) + 2}-2")
    for offset in (1, 2):
        # As an older `state` from a backup would know nothing of them.
        await commands.xadd(keys.tape, fields, id=f"{int(ms) + 3}-{int(number) + offset}")
    (found, _) = await repaired(redis_store)
    assert (found.foreign, found.beyond, found.rebuilt) == (2, 2, ("state",))
    assert [entry.id for entry in await tape.query().all()] == list(range(1, int(number) + 4))
    await writes(tape)


async def test_a_stream_that_remembers_a_later_id_takes_entries_again(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys
) -> None:
    """A hand-made entry was removed by hand: nothing is seen of it but that all is refused."""
    added = await redis_store.server.commands.xadd(keys.tape, {"by": "hand"}, id="99999999999999-0")
    await redis_store.server.commands.xdel(keys.tape, added)
    with pytest.raises(TapeBlocked):
        await tape.append(say("refused"))
    assert (await repaired(redis_store))[0] == Repair("t", rebuilt=("last id",))
    await writes(tape)


async def test_entries_that_are_gone_stay_gone_and_are_told(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys
) -> None:
    """The numbers go on behind the last one; the receipt that covered them says that something is missing."""
    (first, *_, last) = await redis_store.server.commands.xrange(keys.tape)
    await redis_store.server.commands.xdel(keys.tape, first[0], last[0])
    end = (await redis_store.head("t")).last
    (found, _) = await repaired(redis_store)
    assert (found.missing, found.foreign) == (2, 0)
    await writes(tape)
    entries = await tape.query().all()
    assert entries[0].id == 2
    assert end not in {entry.id for entry in entries} and end + 1 in {entry.id for entry in entries}
    assert not (await verify_entries(redis_store.oldest_first("t"))).intact


def hashes(store: RedisTapeStore) -> Any:
    """The server's commands; redis-py's types of what a hash answers cannot be awaited."""
    return store.server.commands


@asynccontextmanager
async def forced_session(store: RedisTapeStore) -> AsyncIterator[None]:
    """Somebody holds the session, whatever else is wrong with the tape."""
    lock = TapeKeys(store.namespace, "t").lock
    await store.server.commands.set(lock, "-:secret:at-work", px=60_000)
    yield
    await store.server.commands.delete(lock)


LOST = ["anchors", "latest", "state", "turns"]


@pytest.mark.parametrize("how", ["lost", "of another type"])
@pytest.mark.parametrize("name", LOST)
async def test_keys_beside_the_stream_are_made_anew(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys, name: str, how: str
) -> None:
    key, commands = getattr(keys, name), hashes(redis_store)
    before, info, anchors = await commands.dump(key), await tape.info(), await tape.anchors()
    fields = await commands.hgetall(key) if name in {"state", "turns"} else {}
    if how == "lost":
        await commands.delete(key)
    else:
        await commands.set(key, "somebody's")
    (found, *_) = await repaired(redis_store)
    assert found.rebuilt == (name,)
    assert found.renamed == (() if how == "lost" else (key,))
    assert [await commands.get(aside) async for aside in commands.scan_iter(f"{key}:damaged:*")] == (
        [] if how == "lost" else [b"somebody's"]
    )
    if fields:
        # The event of the repair moved the tape on, and no fork is open that could repeat what it wrote ahead.
        other = {b"count", b"last", b"ms", b"repair", b"spill/repair", b"spill/batch", b"spill/batch_id"}
        now = await commands.hgetall(key)
        assert now.keys() - other == fields.keys() - other
        assert all(now[field] == fields[field] for field in fields.keys() - other)
    else:
        assert await commands.dump(key) == before
        assert await commands.ttl(key) == -1
    assert (await tape.info()).anchors == info.anchors and await tape.anchors() == anchors
    await writes(tape)
    assert (await verify_entries(redis_store.oldest_first("t"))).intact


async def test_a_run_that_was_committed_is_not_committed_again(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys
) -> None:
    """What `turns` forgot the receipts remember."""
    async with tape.fork_tape(run_id="once") as fork:
        await fork.append(say("once"))
    await redis_store.server.commands.delete(keys.turns)
    await repaired(redis_store)
    async with tape.fork_tape(run_id="once") as fork:
        await fork.append(say("twice"))
    assert "twice" not in texts(await tape.query().all())


@pytest.mark.parametrize("name", ["lock", "fence", "parked_turns"])
async def test_other_keys_of_another_type_are_set_aside(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys, name: str
) -> None:
    await redis_store.server.commands.delete(getattr(keys, name))
    await hashes(redis_store).lpush(getattr(keys, name), "somebody's")
    (found, _) = await repaired(redis_store)
    assert found.renamed == (getattr(keys, name),)
    await writes(tape)


async def test_tokens_go_on_above_those_of_the_receipts(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys
) -> None:
    await redis_store.server.commands.delete(keys.fence, keys.state)
    await repaired(redis_store)
    async with tape.fork_tape() as fork:
        await fork.append(say("later"))
    tokens = [
        entry.payload["data"]["token"]
        for entry in await tape.query().kinds("event").all()
        if entry.payload["name"] == "turn.receipt"
    ]
    assert tokens == sorted(set(tokens))


async def test_a_sidecar_is_repaired_with_its_owner(redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys) -> None:
    spilled = TapeKeys(redis_store.namespace, "t__sidecar__spill")
    await redis_store.server.commands.xadd(spilled.tape, {"by": "hand"})
    await redis_store.server.commands.delete(keys.state)
    (_, found) = await repaired(redis_store)
    assert (found.tape, found.foreign, found.rebuilt) == ("t__sidecar__spill", 1, ("state",))
    handles = [
        entry.payload["data"]["handle"]
        for entry in await tape.query().kinds("event").all()
        if entry.payload["name"] == "spill.write"
    ]
    assert len(handles) == 3
    for handle in handles:
        assert await SPILL.intact(tape, handle)
    with pytest.raises(InvalidInput, match="owner"):
        await redis_store.repair("t__sidecar__spill")


async def test_a_stream_that_was_overwritten_goes_on_empty(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys
) -> None:
    """What stood there is lost to us; numbers go on, and the chain of digests too."""
    end = (await redis_store.head("t")).last
    await redis_store.server.commands.set(keys.tape, "somebody's")
    (found, _) = await repaired(redis_store)
    assert (found.missing, found.renamed) == (end, (keys.tape,))
    await writes(tape)
    assert (await tape.query().all())[0].id == end + 1


async def test_what_was_done_is_on_the_tape(redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys) -> None:
    await redis_store.server.commands.xadd(keys.tape, {"by": "hand"})
    await repaired(redis_store)
    *_, event = await tape.query().kinds("event").all()
    assert event.payload["name"] == "tape.repair"
    assert event.payload["data"]["repairs"] == [
        {"tape": "t", "foreign": 1, "missing": 0, "beyond": 0, "rebuilt": [], "renamed": []}
    ]
    assert event.meta == {"context": False}


async def test_a_session_that_is_worked_on_is_not_repaired(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys
) -> None:
    async with redis_store.session("t", "at-work", 1.0):
        await redis_store.server.commands.xadd(keys.tape, {"by": "hand"})
        before = await dumped(redis_store)
        with pytest.raises(SessionBusy, match="at-work"):
            await redis_store.repair("t")
        assert await dumped(redis_store) == before


async def test_a_repair_that_is_refused_opens_nothing_half_way(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys
) -> None:
    """A tape without its marks would commit a turn again, so it stays as it is until all is mended at once."""
    await redis_store.server.commands.set(keys.turns, "somebody's")
    async with forced_session(redis_store):
        before = await dumped(redis_store)
        with pytest.raises(SessionBusy):
            await redis_store.repair("t")
        assert await dumped(redis_store) == before


@pytest.mark.parametrize("script", ["seize", "repair"])
async def test_a_lost_reply_to_a_repair_repeats_nothing(
    redis_store: RedisTapeStore, server: EmbeddedServer, tape: Tape, keys: TapeKeys, tmp_path: Path, script: str
) -> None:
    commands = hashes(redis_store)
    anchors = await commands.zrange(keys.anchors, 0, -1)
    await commands.delete(keys.anchors)
    await commands.delete(keys.fence)
    async with (
        proxied(server, tmp_path) as proxy,
        RedisTapeStore.from_url(proxy.url, namespace=redis_store.namespace) as store,
    ):
        await store.repair("t")  # so that the server knows the scripts
        await commands.delete(keys.anchors)
        proxy.lose_reply_to(Script("bub_redis.storage", script).sha.encode(), times=2)
        assert (await store.repair("t"))[0].rebuilt == ("anchors",)
        assert proxy.struck == 2
    assert await commands.zrange(keys.anchors, 0, -1) == anchors
    await writes(tape)


GARBAGE = [
    *((name, value) for name in ("last", "ms", "count", "generation") for value in (b"abc", b"-3", b"9" * 23)),
    *((name, value) for name in ("receipt", "digest", "usage", "anchor") for value in (b"abc", b"\xff")),
    ("receipt", b"9999999999999-4"),
    ("spill/last", b"abc"),
]


@pytest.mark.parametrize(("name", "value"), GARBAGE)
async def test_fields_that_nobody_of_us_wrote_are_made_anew(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys, name: str, value: bytes
) -> None:
    commands = hashes(redis_store)
    before = await commands.hget(keys.state, name)
    await commands.hset(keys.state, name, value)
    assert any(found.rebuilt == ("state",) for found in await repaired(redis_store))
    if name not in {"count", "last", "ms"}:
        assert await commands.hget(keys.state, name) == before
    await writes(tape)
    assert (await verify_entries(redis_store.oldest_first("t"))).intact


async def test_a_mark_that_cannot_be_read_is_made_anew(redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys) -> None:
    commands = hashes(redis_store)
    marks = await commands.hgetall(keys.turns)
    await commands.hset(keys.turns, next(iter(marks)), "garbage")
    with pytest.raises(TapeBlocked, match="tape repair"):
        await redis_store.committed("t", next(iter(marks)).decode())
    await repaired(redis_store)
    assert await commands.hgetall(keys.turns) == marks


async def test_a_merge_that_stopped_behind_its_entries_is_brought_to_its_end(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys
) -> None:
    """Its turn is not open any more."""
    commands = hashes(redis_store)
    marks = await commands.hgetall(keys.turns)
    last = max(marks, key=lambda turn: StreamId.of(marks[turn].split()[0]))
    await commands.hdel(keys.turns, last)
    await commands.hset(keys.state, mapping={"open": last, "opener": 3})
    await repaired(redis_store)
    assert await commands.hgetall(keys.turns) == marks
    assert await commands.hget(keys.state, "open") is None


@pytest.mark.parametrize("number", [0, 2**53 + 1, 2**64 - 1])
async def test_an_entry_by_hand_takes_nobodys_place(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys, number: int
) -> None:
    """With the number of our last one, or with one that nobody can count."""
    head = await redis_store.head("t")
    before = await tape.query().all()
    fields: Any = dict(zip(StoredEntry._fields, say("by hand").encode(), strict=True))
    await redis_store.server.commands.xadd(keys.tape, fields, id=f"{head.last_ms + 1}-{number or head.last}")
    assert (await repaired(redis_store))[0].foreign == 1
    assert (await tape.query().all())[:-1] == before
    await writes(tape)
    assert (await verify_entries(redis_store.oldest_first("t"))).intact


async def test_a_sidecar_is_found_where_state_was_lost(redis_store: RedisTapeStore, keys: TapeKeys) -> None:
    notes = "t__sidecar__notes"
    await redis_store.append("t", say("a"))
    await redis_store.append(notes, say("a note"))
    await redis_store.server.commands.delete(keys.state)
    assert [found.tape for found in await repaired(redis_store)] == ["t", notes]
    await redis_store.append(notes, say("another"))


@pytest.mark.parametrize("kind", ["frames", "journal"])
async def test_keys_of_a_turn_that_waits_are_looked_at(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys, kind: str
) -> None:
    """They keep the turn from being started, as the tape's own do."""
    key = getattr(keys, kind)("m1")
    await redis_store.server.commands.set(key, "somebody's")
    assert not any(found.needed for found in await redis_store.survey("t"))
    assert (await redis_store.repair("t", turns=["m1"]))[0].renamed == (key,)
    assert not any(found.needed for found in await redis_store.survey("t", turns=["m1"]))


async def test_a_lock_without_end_is_set_aside(redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys) -> None:
    await redis_store.server.commands.set(keys.lock, "1:x:gone")
    assert (await repaired(redis_store))[0].renamed == (keys.lock,)
    await writes(tape)


async def test_what_was_set_aside_goes_with_the_tape(redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys) -> None:
    """Also a lock that was set aside when the session was taken, and what was a sidecar's."""
    commands = redis_store.server.commands
    other = Tape("other", redis_store)
    await other.append(say("kept"))
    spill = TapeKeys(redis_store.namespace, sidecar_tape_name(tape.name, "spill"))
    for odd in ([keys.lock], [spill.anchors, keys.latest]):
        for key in odd:
            await commands.delete(key)
            await commands.set(key, "somebody's")
        await repaired(redis_store)
    assert len([key async for key in commands.scan_iter(f"{redis_store.namespace}:*:damaged:*")]) == 3
    await redis_store.delete(tape.name)
    left = {key.decode() async for key in commands.scan_iter(f"{redis_store.namespace}:*") if b"{t}" in key}
    assert left <= {keys.fence} and await other.query().all()


async def test_a_tape_that_there_is_not_needs_no_repair(redis_store: RedisTapeStore) -> None:
    assert not any(found.needed for found in await repaired(redis_store))
    assert await redis_store.list_tapes() == []


async def test_a_tape_of_many_pages_is_repaired(redis_store: RedisTapeStore, keys: TapeKeys) -> None:
    tape = Tape("t", redis_store)
    for number in range(3):
        await tape.append(*(TapeEntry.anchor(f"{number}-{place}") for place in range(700)))
    commands = hashes(redis_store)
    before = dict(await commands.zrange(keys.anchors, 0, -1, withscores=True)), await commands.hgetall(keys.latest)
    await commands.delete(keys.anchors, keys.latest, keys.state)
    (found,) = await repaired(redis_store)
    assert found.rebuilt == ("anchors", "latest", "state")
    assert dict(await commands.zrange(keys.anchors, 0, -1, withscores=True)) == before[0]
    assert await commands.hgetall(keys.latest) == before[1]
    await writes(tape)


async def test_a_repair_that_is_cut_short_anywhere_may_be_repeated(
    redis_store: RedisTapeStore, tape: Tape, keys: TapeKeys
) -> None:
    """Nothing of the tape is lost on the way, and no key without a TTL is left of what was begun."""
    # A lock that could not be given back is gone soon.
    hasty = RedisTapeStore(redis_store.server, namespace=redis_store.namespace, lease_s=0.2)
    commands = redis_store.server.commands
    before = await tape.query().all()
    finished = False
    for steps in range(0, 1200, 16):
        await commands.xadd(keys.tape, {"by": "hand"}, id=f"{99999999999999 + steps}-0")
        await commands.delete(keys.anchors)
        work = asyncio.create_task(hasty.repair("t"))
        for _ in range(steps):
            await asyncio.sleep(0)  # noqa: TID251 - a step of the event loop, not a time
        work.cancel()
        (ended,) = await asyncio.gather(work, return_exceptions=True)
        finished = finished or not isinstance(ended, BaseException)
        await hasty.repair("t", wait_s=5.0)
        await tape.append(say("on"))
    assert finished
    assert (await tape.query().all())[: len(before)] == before
    left = [key async for key in commands.scan_iter(f"{redis_store.namespace}:*:rebuilt:*")]
    assert [key for key in left if await commands.ttl(key) < 0] == []
