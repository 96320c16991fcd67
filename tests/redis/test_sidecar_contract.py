"""Sidecars: what every store does with the tapes beside a tape, and what becomes of one that cannot be used."""

import json
from pathlib import Path

import pytest

from bub_redis.errors import Fenced, InvalidInput, NotFound, TapeBlocked
from bub_redis.storage import RedisTapeStore
from bub_redis.storage.commit import LastFrame
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape import Tape, TapeEntry, TapeSidecar
from bub_redis.tape.adapter import AdaptedStore
from bub_redis.tape.fork import Fork
from bub_redis.tape.receipt import RECEIPT_EVENT, broken_receipts
from tests.entries import say, texts
from tests.redis.conftest import AnyStore

NOTES, MORE = TapeSidecar("notes"), TapeSidecar("more")


def beside(tape: Tape, name: str = "notes") -> Tape:
    """The tape of a sidecar, read by itself."""
    return Tape(tape.sidecar_tape_name(name), tape.store)


async def events(tape: Tape) -> list[tuple[str, str | None]]:
    """Name and status of the events on a tape."""
    found = await tape.query().kinds("event").all()
    return [(entry.payload["name"], entry.payload.get("data", {}).get("status")) for entry in found]


# Mounted


@pytest.mark.parametrize("name", ["", "A", "1a", "a b", "a/b", "a" * 33, "é", "a__sidecar__b"])
def test_names_that_no_sidecar_may_have(name: str) -> None:
    with pytest.raises(InvalidInput):
        TapeSidecar(name)


async def test_a_sidecar_is_hidden_and_never_in_a_context(store: AnyStore) -> None:
    """Cases 21, 28 and 54."""
    tape = Tape("t", store, sidecars=[NOTES])
    await tape.append(say("a"))
    await store.append(tape.sidecar_tape_name("notes"), say("beside"), TapeEntry.anchor("p"))
    if not isinstance(store, AdaptedStore):  # a store of Bub lists what it likes
        assert await store.list_tapes() == ["t"]
    assert texts(await tape.query().all()) == ["a"]
    assert [message.text for message in await tape.read_messages()] == ["a"]
    assert await tape.search("beside") == []
    assert (await tape.info()).entries == 1
    with pytest.raises(NotFound):
        await tape.query().last_anchor().all()


async def test_each_sidecar_is_a_tape_of_its_own(store: AnyStore) -> None:
    tape = Tape("t", store, sidecars=[NOTES, MORE])
    await beside(tape).append(TapeEntry.anchor("p"), say("a"), say("b"))
    await beside(tape, "more").append(say("c"))
    await tape.append(say("d"))
    assert texts(await beside(tape).query().last_anchor().all()) == ["a", "b"]
    assert [entry.id for entry in await beside(tape, "more").query().all()] == [1]
    assert (await beside(tape).info()).entries == 3
    with pytest.raises(NotFound):
        await beside(tape, "more").query().after_anchor("p").all()


async def test_a_name_is_mounted_once_and_asked_for_by_name(store: AnyStore) -> None:
    tape = Tape("t", store, sidecars=[NOTES])
    assert tape.get_sidecar("notes") is NOTES
    assert tape.get_sidecar("more") is None
    with pytest.raises(NotFound, match="more"):
        tape.sidecar_tape_name("more")
    with pytest.raises(InvalidInput, match="notes"):
        Tape("t", store, sidecars=[NOTES, NOTES])


async def test_a_long_name_has_sidecars_too(store: AnyStore) -> None:
    if isinstance(store, AdaptedStore):
        pytest.skip("file names are shorter")
    tape = Tape("x" * 200, store, sidecars=[TapeSidecar("a" + "b" * 31)])
    async with tape.fork_tape() as fork:
        await beside(fork, "a" + "b" * 31).append(say("a"))
    assert texts(await beside(tape, "a" + "b" * 31).query().all()) == ["a"]


# Forked and merged


async def test_a_sidecar_is_forked_and_merged_with_its_owner(store: AnyStore) -> None:
    """Case 22: nothing of it outside before the merge, all of it after."""
    tape = Tape("t", store, sidecars=[NOTES])
    await beside(tape).append(say("old"))
    async with tape.fork_tape() as fork:
        await fork.append(say("main"))
        await beside(fork).append(TapeEntry.anchor("p"), say("new"))
        assert texts(await beside(fork).query().all()) == ["old", "new"]
        assert texts(await beside(fork).query().after_anchor("p").all()) == ["new"]
        assert texts(await beside(tape).query().all()) == ["old"]
    assert texts(await beside(tape).query().all()) == ["old", "new"]
    assert [entry.id for entry in await beside(tape).query().all()] == [1, 2, 3]
    assert texts(await tape.query().all()) == ["main"]


async def test_a_fork_that_is_not_merged_drops_its_sidecars_too(store: AnyStore) -> None:
    """Case 22."""
    tape = Tape("t", store, sidecars=[NOTES])
    async with tape.fork_tape(merge_back=False) as fork:
        await beside(fork).append(say("dropped"))
        assert isinstance(fork.store, Fork)
        await fork.store.append_ahead(fork.sidecar_tape_name("notes"), say("dropped, too"))
        assert texts(await beside(fork).query().all()) == ["dropped", "dropped, too"]
    assert await beside(tape).query().all() == []


async def test_only_a_sidecar_that_changed_makes_a_merge(store: AnyStore) -> None:
    tape = Tape("t", store, sidecars=[NOTES])
    async with tape.fork_tape() as fork:
        await beside(fork).append(say("beside"))
    async with tape.fork_tape() as fork:
        await beside(fork).query().all()
    assert [name for name, _ in await events(tape)] == [RECEIPT_EVENT]
    assert texts(await beside(tape).query().all()) == ["beside"]


async def test_what_is_written_ahead_is_there_before_the_merge(store: AnyStore) -> None:
    tape = Tape("t", store, sidecars=[NOTES])
    async with tape.fork_tape() as fork:
        assert isinstance(fork.store, Fork)
        await beside(fork).append(say("with the merge"))
        await fork.store.append_ahead(fork.sidecar_tape_name("notes"), say("ahead"))
        assert texts(await beside(tape).query().all()) == ["ahead"]
        seen = await beside(fork).query().all()
        assert texts(seen) == ["ahead", "with the merge"]
        assert [entry.id for entry in seen] == [1, 2]
    assert texts(await beside(tape).query().all()) == ["ahead", "with the merge"]


async def test_nothing_is_written_ahead_without_the_last_grant(store: AnyStore) -> None:
    """Case 183: a worker that lost its session writes nowhere any more."""
    tape = Tape("t", store, sidecars=[NOTES])
    notes = tape.sidecar_tape_name("notes")
    async with store.session("t", "slow", 1.0) as grant:
        fork = await Fork.open(store, grant, sidecars=[notes])
    async with store.session("t", "quick", 1.0):
        pass
    with pytest.raises(Fenced):
        await fork.append_ahead(notes, say("late"))
    assert await beside(tape).query().all() == []


# Reset and archived


async def test_sidecars_are_reset_with_their_owner_and_told_of(store: AnyStore) -> None:
    tape = Tape("t", store, sidecars=[NOTES, MORE])
    await tape.append(say("old"))
    await beside(tape).append(TapeEntry.anchor("p"), say("old"))
    await beside(tape, "more").append(say("kept"))
    await tape.reset(keep_sidecars=["more"])
    assert await beside(tape).query().all() == []
    assert texts(await beside(tape, "more").query().all()) == ["kept"]
    assert await events(tape) == [("handoff", None), ("sidecar.reset", "ok")]
    await beside(tape).append(say("new"))
    assert [entry.id for entry in await beside(tape).query().all()] == [1]


async def test_sidecars_are_reset_in_a_fork(store: AnyStore) -> None:
    """Nothing outside changes before the merge."""
    tape = Tape("t", store, sidecars=[NOTES])
    await beside(tape).append(say("old"))
    async with tape.fork_tape() as fork:
        await fork.reset()
        assert await beside(fork).query().all() == []
        await beside(fork).append(say("new"))
        assert texts(await beside(tape).query().all()) == ["old"]
    assert texts(await beside(tape).query().all()) == ["new"]


async def test_one_sidecar_is_reset_by_itself(store: AnyStore) -> None:
    tape = Tape("t", store, sidecars=[NOTES, MORE])
    async with tape.fork_tape() as fork:
        for name in ("notes", "more"):
            await beside(fork, name).append(say("old"))
    assert await tape.reset_sidecar("notes")
    assert await beside(tape).query().all() == []
    assert texts(await beside(tape, "more").query().all()) == ["old"]
    assert await events(tape) == [(RECEIPT_EVENT, "completed"), ("sidecar.reset", "ok")]
    *_, event = await tape.query().all()
    assert event.meta == {"context": False}
    with pytest.raises(NotFound):
        await tape.reset_sidecar("nothing")


async def test_an_archive_has_a_file_for_each_sidecar(store: AnyStore, tmp_path: Path) -> None:
    """Case 99: else old handles die."""
    tape = Tape("t", store, sidecars=[NOTES])
    await tape.append(say("main"))
    await beside(tape).append(say("beside"))
    main = await tape.archive(tmp_path / "archive")
    names = sorted(path.name.partition(".jsonl.")[0] for path in (tmp_path / "archive").iterdir())
    assert names == ["t", "t__sidecar__notes"]
    assert main.name.startswith("t.jsonl.")
    assert await events(tape) == [("sidecar.archive", "ok")]
    assert texts(await tape.query().all()) == ["main"]


async def test_a_sidecar_that_cannot_be_archived_is_kept(
    store: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 99: the main tape goes on, and both events say what became of the sidecar."""
    tape = Tape("t", store, sidecars=[NOTES, MORE])
    await tape.append(say("old"))
    for name in ("notes", "more"):
        await beside(tape, name).append(say("old"))
    monkeypatch.setattr("bub_redis.tape.archive.encode_name", _unwritable)
    await tape.reset(archive_to=tmp_path / "archive")
    assert texts(await beside(tape).query().all()) == ["old"]
    assert await beside(tape, "more").query().all() == []
    assert sorted(await events(tape), key=str) == sorted(
        [
            ("handoff", None),
            ("sidecar.archive", "error"),
            ("sidecar.archive", "ok"),
            ("sidecar.reset", "skipped"),
            ("sidecar.reset", "ok"),
        ],
        key=str,
    )


def _unwritable(name: str) -> str:
    return "missing folder/notes" if name.endswith("notes") else name


# Unfit


async def test_a_sidecar_that_was_reset_meanwhile_is_left_out_of_the_merge(store: AnyStore) -> None:
    """What it was written for is gone; the main tape says so, and everything else is merged."""
    tape = Tape("t", store, sidecars=[NOTES, MORE])
    async with store.session("t", "run-1", 1.0) as grant:
        fork = await Fork.open(store, grant, sidecars=[tape.sidecar_tape_name("notes"), tape.sidecar_tape_name("more")])
        await fork.append("t", say("main"))
        await fork.append(tape.sidecar_tape_name("notes"), say("late"))
        await fork.append(tape.sidecar_tape_name("more"), say("fine"))
    if isinstance(store, AdaptedStore):
        pytest.skip("needs a fence that outlives the session")
    await store.reset(tape.sidecar_tape_name("notes"), force=False)
    async with store.session("t", "run-2", 1.0) as later:
        fork.grant = later
        receipt = await fork.merge("completed")
    assert receipt.entries == 2
    assert await events(tape) == [("sidecar.merge", "error"), (RECEIPT_EVENT, "completed")]
    assert await beside(tape).query().all() == []
    assert texts(await beside(tape, "more").query().all()) == ["fine"]
    assert broken_receipts(await tape.query().all()) == []


@pytest.mark.parametrize("key", ["tape", "anchors", "latest"])
async def test_something_else_under_a_sidecars_key_blocks_nothing_else(redis_store: RedisTapeStore, key: str) -> None:
    """Cases 55 and 99: it is left as it is; the tape is merged and reset without it, and says so."""
    tape = Tape("t", redis_store, sidecars=[NOTES, MORE])
    keys = TapeKeys(redis_store.namespace, tape.sidecar_tape_name("notes"))
    async with tape.fork_tape() as fork:
        await beside(fork).append(say("lost"))
        await beside(fork, "more").append(say("fine"))
        await fork.append(say("main"))
        await redis_store.server.commands.set(getattr(keys, key), "something else")
    assert await events(tape) == [("sidecar.merge", "error"), (RECEIPT_EVENT, "completed")]
    assert texts(await beside(tape, "more").query().all()) == ["fine"]
    assert broken_receipts(await tape.query().all()) == []
    await tape.reset()
    assert [status for name, status in await events(tape) if name == "sidecar.reset"] == ["error", "ok"]
    assert not await tape.reset_sidecar("notes")
    assert "another type" in (await tape.query().all())[-1].payload["data"]["error"]
    assert await redis_store.server.commands.get(getattr(keys, key)) == b"something else"


async def test_the_closing_frame_tells_of_the_block_that_was_committed(redis_store: RedisTapeStore) -> None:
    """The block is one entry longer where a sidecar was left out, and followers learn that."""
    tape = Tape("t", redis_store, sidecars=[NOTES])
    notes = tape.sidecar_tape_name("notes")
    async with redis_store.session("t", "m1", 1.0) as grant:
        fork = await Fork.open(redis_store, grant, sidecars=[notes])
        await fork.append("t", say("main"))
        await fork.append(notes, say("left out"))
        commit = await fork.prepare("completed")
        await redis_store.server.commands.set(TapeKeys(redis_store.namespace, notes).tape, "something else")
        data = {"entries": commit.receipt.entries, "answer": None, "text": "half \ud83d"}
        last_frame = LastFrame("finished", 1, 2, json.dumps(data).encode(), 60_000)
        receipt = await redis_store.commit(commit, last_frame)
    keys = TapeKeys(redis_store.namespace, "t")
    ((_, frame),) = await redis_store.server.commands.xrange(keys.frames("m1"))
    assert json.loads(frame[b"data"]) == data | {"entries": 2}
    assert receipt.entries == 2


async def test_a_hand_made_entry_in_a_sidecar_blocks_that_alone(redis_store: RedisTapeStore) -> None:
    tape = Tape("t", redis_store, sidecars=[NOTES])
    await beside(tape).append(say("old"))
    await redis_store.server.commands.xadd(
        TapeKeys(redis_store.namespace, tape.sidecar_tape_name("notes")).tape, {"by": "hand"}
    )
    with pytest.raises(TapeBlocked):
        await beside(tape).append(say("refused"))
    async with tape.fork_tape() as fork:
        await fork.append(say("main"))
        await beside(fork).append(say("left out"))
    assert texts(await tape.query().all()) == ["main"]
    assert texts(await beside(tape).query().all()) == ["old"]
