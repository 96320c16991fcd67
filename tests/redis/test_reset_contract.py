"""Reset and delete: what every store does, by itself, in a fork, and beside others."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from bub_redis.errors import Conflict, Fenced, NotFound, SessionBusy
from bub_redis.tape import Tape, TapeEntry, TapeSidecar
from bub_redis.tape.adapter import AdaptedStore
from bub_redis.tape.archive import Archive
from bub_redis.tape.fork import Fork
from bub_redis.tape.receipt import RECEIPT_EVENT, RESET_EVENT, Receipt, broken_receipts
from bub_redis.tape.records import decode_record
from tests.entries import say, texts
from tests.redis.conftest import AnyStore

NOTES = TapeSidecar("notes")


def needs_commit(store: AnyStore) -> None:
    """Skip a test of what a store with four methods cannot do, whatever is put on top of it."""
    if isinstance(store, AdaptedStore):
        pytest.skip("the store has no commit of its own")


async def kinds(tape: Tape) -> list[str]:
    """What stands on a tape: anchors and events by their name, everything else by its kind."""
    return [str(entry.payload.get("name", entry.kind)) for entry in await tape.query().all()]


# A reset by itself


async def test_a_reset_tape_holds_one_fresh_session_start(store: AnyStore) -> None:
    """Case 29: never an empty tape."""
    tape = Tape("t", store)
    await tape.append(say("old"), TapeEntry.anchor("old"))
    await tape.reset(state={"why": "test"})
    anchor, handoff = await tape.query().all()
    assert anchor.payload == {"name": "session/start", "state": {"owner": "human", "why": "test"}}
    assert handoff.payload["name"] == "handoff"
    assert [anchor.id, handoff.id] == [1, 2]


async def test_anchors_of_before_are_gone(store: AnyStore) -> None:
    """Case 64: the index goes with the tape."""
    tape = Tape("t", store)
    await tape.append(TapeEntry.anchor("old"), say("behind"))
    await tape.reset()
    with pytest.raises(NotFound):
        await tape.query().after_anchor("old").all()
    assert (await tape.info()).anchors == 1
    assert await tape.last_usage() is None


async def test_the_generation_rises_and_no_moment_comes_again(store: AnyStore) -> None:
    """Case 137: stream ids only grow, over resets too."""
    needs_commit(store)
    tape = Tape("t", store)
    await tape.append(say("old"))
    seen = [await store.head("t")]
    for _ in range(3):
        await tape.reset()
        seen.append(await store.head("t"))
    assert [head.generation for head in seen] == [0, 1, 2, 3]
    assert all(earlier.last_ms < later.last_ms for earlier, later in pairwise(seen))


async def test_an_unknown_tape_can_be_reset(store: AnyStore) -> None:
    tape = Tape("new", store)
    await tape.reset()
    assert await kinds(tape) == ["session/start", "handoff"]


async def test_what_cannot_be_stored_resets_nothing(store: AnyStore) -> None:
    tape = Tape("t", store)
    await tape.append(say("old"))
    with pytest.raises(ValueError, match="nothing was written"):
        await tape.reset(state={"bad": float("nan")})
    assert texts(await tape.query().all()) == ["old"]


# Who may reset


async def test_a_held_session_is_not_reset(store: AnyStore) -> None:
    """Case 178: the error names who holds it, and what they do is not lost."""
    tape = Tape("t", store)
    async with tape.fork_tape(run_id="run-7") as fork:
        await fork.append(say("kept"))
        with pytest.raises(SessionBusy, match="run-7"):
            await tape.reset()
    assert texts(await tape.query().all()) == ["kept"]


async def test_a_reset_waits_as_long_as_it_is_told_to(store: AnyStore) -> None:
    tape = Tape("t", store)
    async with tape.fork_tape():
        waiting = asyncio.create_task(tape.reset(wait_s=20))
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done()
    await waiting
    assert (await store.head("t")).generation == 1


async def test_a_forced_reset_bars_whoever_held_the_session(store: AnyStore) -> None:
    """Case 178: their commit is refused whole, and the next fork is not kept waiting."""
    needs_commit(store)
    tape = Tape("t", store)
    await tape.append(say("old"))
    with pytest.raises(Fenced):
        async with tape.fork_tape(run_id="barred") as fork:
            await fork.append(say("late"))
            await tape.reset(force=True)
    assert await kinds(tape) == ["session/start", "handoff"]
    async with tape.fork_tape(wait_s=0) as fork:
        await fork.append(say("next"))
    assert texts(await tape.query().all()) == ["next"]


async def test_a_fork_does_not_read_on_after_a_reset(store: AnyStore) -> None:
    """Cases 74, 141 and 142: two generations never mix."""
    needs_commit(store)
    tape = Tape("t", store)
    await tape.append(say("old"))
    async with tape.fork_tape(merge_back=False) as fork:
        await tape.reset(force=True)
        await tape.append(say("new"))
        with pytest.raises(Conflict, match="reset"):
            await fork.query().all()


async def test_readers_see_one_generation_whole(store: AnyStore) -> None:
    """Cases 74, 142 and 148: whatever moment a reader looks, all it sees is of one generation, and never nothing."""
    needs_commit(store)
    tape = Tape("t", store)

    async def grow(generation: int) -> None:
        await tape.append(*(TapeEntry.event("e", {"generation": generation}) for _ in range(80)))

    async def look() -> None:
        while not done.is_set():
            entries = await tape.query().kinds("event").all()
            data = [entry.payload.get("data", {}) for entry in entries]
            assert len({one["generation"] for one in data if "generation" in one}) <= 1
            assert len(await tape.query().all()) > 0
            await asyncio.sleep(0)  # noqa: TID251 - some stores never wait

    done = asyncio.Event()
    await grow(0)
    readers = [asyncio.create_task(look()) for _ in range(3)]
    for generation in range(1, 6):
        await tape.reset(state={"generation": generation})
        await grow(generation)
        await asyncio.sleep(0)  # noqa: TID251 - gives the readers a turn
    done.set()
    await asyncio.gather(*readers)


# A reset in a fork


async def test_a_forks_reset_is_seen_by_itself_alone(store: AnyStore) -> None:
    """Cases 7 and 44: nothing outside changes before the merge, and without one nothing ever."""
    tape = Tape("t", store)
    await tape.append(say("old"))
    async with tape.fork_tape(merge_back=False) as fork:
        await fork.append(say("dropped"))
        await fork.reset()
        await fork.append(say("new"))
        assert texts(await fork.query().all()) == ["new"]
        assert [entry.id for entry in await fork.query().all()] == [1, 2, 3]
        assert texts(await tape.query().all()) == ["old"]
    assert texts(await tape.query().all()) == ["old"]


async def test_a_merged_reset_empties_the_parent_then_appends(store: AnyStore) -> None:
    """Case 44."""
    tape = Tape("t", store)
    await tape.append(say("old"))
    async with tape.fork_tape() as fork:
        await fork.append(say("dropped"))
        await fork.reset()
        await fork.append(say("new"))
    assert await kinds(tape) == ["session/start", "handoff", "message", RECEIPT_EVENT]
    assert texts(await tape.query().last_anchor().all()) == ["new"]
    assert (await store.head("t")).generation == 1


async def test_what_others_appended_meanwhile_is_kept_behind_the_opening(store: AnyStore) -> None:
    """Case 96: only what the fork saw is reset; what it did not see is copied, bytes unchanged."""
    tape = Tape("t", store)
    await tape.append(TapeEntry.anchor("p"), say("old"))
    theirs = [say("theirs, half \ud83d"), TapeEntry.anchor("p", {"whose": "theirs"})]
    async with tape.fork_tape() as fork:
        await fork.reset()
        await fork.append(say("mine"))
        await tape.append(*theirs)
    assert await kinds(tape) == ["session/start", "handoff", "message", "p", "message", RECEIPT_EVENT]
    entries = await tape.query().all()
    assert [entry.encode() for entry in entries[2:4]] == [entry.encode() for entry in theirs]
    assert [entry.id for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert texts(await tape.query().after_anchor("p").all()) == ["mine"]
    assert [anchor.name for anchor in await tape.anchors()] == ["session/start", "p"]


async def test_a_kept_usage_is_found_at_its_new_place(store: AnyStore) -> None:
    """Case 131: the last usage is that of an entry that is there."""
    tape = Tape("t", store)
    await tape.append(*(TapeEntry.event("run", {"usage": {"total_tokens": n}}) for n in (1, 2)))
    async with tape.fork_tape() as fork:
        await fork.reset()
        await fork.append(say("mine"))
        await tape.append(TapeEntry.event("run", {"usage": {"total_tokens": 3}}), say("theirs"))
    usage = await tape.last_usage()
    assert usage is not None and (usage.id, usage.payload["data"]["usage"]) == (3, {"total_tokens": 3})
    await tape.reset()
    assert await tape.last_usage() is None


async def test_a_fork_may_be_reset_more_than_once(store: AnyStore) -> None:
    tape = Tape("t", store)
    await tape.append(say("old"))
    async with tape.fork_tape() as fork:
        await fork.reset(state={"n": 1})
        await fork.append(say("dropped"))
        await fork.reset(state={"n": 2})
        await fork.append(say("new"))
    entries = await tape.query().all()
    assert entries[0].payload["state"]["n"] == 2
    assert texts(entries) == ["new"]


# Receipts over resets


async def merged(tape: Tape, *entries: TapeEntry) -> Receipt:
    async with tape.fork_tape() as fork:
        await fork.append(*entries)
    last = (await tape.query().all())[-1]
    return Receipt.from_entry(last, f"0-{last.id}")


async def test_receipts_go_on_over_a_reset(store: AnyStore) -> None:
    """The event `tape.reset` names the receipt with which the chain goes on, so that an export proves itself."""
    tape = Tape("t", store)
    before = await merged(tape, say("a"))
    await tape.append(say("never covered"))
    await tape.reset()
    await merged(tape, say("b"))
    await tape.append(say("between"))
    await merged(tape, say("c"))
    entries = await tape.query().all()
    assert await kinds(tape) == [
        *["session/start", "handoff", RESET_EVENT],
        *["message", RECEIPT_EVENT, "message", "message", RECEIPT_EVENT],
    ]
    assert entries[2].payload["data"]["digest"] == before.digest
    assert entries[2].meta == {"context": False}
    assert broken_receipts(entries) == []
    forged = TapeEntry.event(RESET_EVENT, entries[2].payload["data"] | {"digest": "0" * 64}, context=False)
    entries[2] = TapeEntry(3, forged.kind, forged.payload, forged.meta, entries[2].date)
    assert broken_receipts(entries) == [5]


async def test_receipts_go_on_over_a_reset_in_a_fork(store: AnyStore) -> None:
    """Also where others appended meanwhile: their entries belong to the next receipt."""
    tape = Tape("t", store)
    await merged(tape, say("a"))
    async with tape.fork_tape() as fork:
        await fork.reset()
        await fork.append(say("b"), TapeEntry.message({"role": "assistant", "content": "answer"}))
        await tape.append(say("theirs"))
    entries = await tape.query().all()
    receipt = Receipt.from_entry(entries[-1], f"0-{entries[-1].id}")
    assert (receipt.seen, list(receipt.unseen), receipt.first) == (3, [4], 5)
    assert receipt.answer_entry == 6
    await merged(tape, say("c"))
    entries = await tape.query().all()
    assert broken_receipts(entries) == []
    entries[3] = TapeEntry(4, "message", {"role": "user", "content": "forged"}, {}, entries[3].date)
    assert broken_receipts(entries) == [9]


async def test_a_commit_is_refused_if_the_tape_was_reset_meanwhile(store: AnyStore) -> None:
    async with store.session("t", "run-1", 1.0) as grant:
        fork = await Fork.open(store, grant)
        await fork.append("t", say("late"))
        commit = await fork.prepare("completed")
    await Tape("t", store).reset()
    with pytest.raises(Conflict):
        await store.commit(commit)
    assert await kinds(Tape("t", store)) == ["session/start", "handoff"]


# Archive


async def test_an_archive_keeps_what_a_reset_takes(store: AnyStore, tmp_path: Path) -> None:
    """Case 29: the anchor names the archive; its lines are Bub's."""
    tape = Tape("a/b", store)
    await tape.append(say("old, half \ud83d"), TapeEntry.event("e", {"n": 10**30}))
    before = await tape.query().all()
    path = await tape.reset(archive_to=tmp_path / "archive")
    assert path is not None
    (anchor, _) = await tape.query().all()
    assert anchor.payload["state"] == {"owner": "human", "archived": str(path)}
    assert archived(path) == before
    assert list((tmp_path / "archive").iterdir()) == [path]


async def test_a_tape_that_cannot_be_archived_is_not_reset(store: AnyStore, tmp_path: Path) -> None:
    """Case 99."""
    tape = Tape("t", store, sidecars=[NOTES])
    await tape.append(say("old"))
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="nothing was changed"):
        await tape.reset(archive_to=tmp_path / "file")
    assert texts(await tape.query().all()) == ["old"]
    assert (await store.head("t")).generation == 0


async def test_a_reset_that_is_refused_leaves_no_archive(store: AnyStore, tmp_path: Path) -> None:
    tape = Tape("t", store, sidecars=[NOTES])
    await tape.append(say("old"))
    async with tape.fork_tape(merge_back=False):
        with pytest.raises(SessionBusy):
            await tape.reset(archive_to=tmp_path / "archive")
    assert texts(await tape.query().all()) == ["old"]
    assert not list((tmp_path / "archive").iterdir())


async def test_an_archive_holds_the_tape_as_it_stood(store: AnyStore, tmp_path: Path) -> None:
    """What comes later is kept on the tape by the reset, so it is not in the archive too."""
    tape = Tape("t", store)
    await tape.append(say("old"))
    head = await store.head("t")
    await tape.append(say("later"))
    assert texts(archived(await Archive(tmp_path).write(store, "t", head))) == ["old"]


async def test_what_is_appended_while_the_archive_is_written_stays(store: AnyStore, tmp_path: Path) -> None:
    tape = Tape("t", store)
    await tape.append(say("old"))
    head = await store.head("t")
    await tape.append(say("meanwhile"))
    await store.reset("t", [TapeEntry.anchor("session/start")], seen=head)
    assert texts(await tape.query().all()) == ["meanwhile"]
    assert await kinds(tape) == ["session/start", "message"]


def archived(path: Path) -> list[TapeEntry]:
    records = [decode_record(line) for line in path.read_bytes().splitlines(keepends=True)]
    return [record.entry for record in records if record is not None]


# Delete


async def test_a_deleted_tape_is_gone_and_may_begin_again(store: AnyStore) -> None:
    needs_commit(store)
    tape = Tape("t", store, sidecars=[NOTES])
    await tape.append(say("old"))
    await store.append(tape.sidecar_tape_name("notes"), TapeEntry.event("note"))
    async with tape.fork_tape(run_id="run-1") as fork:
        await fork.append(say("b"))
    await store.delete("t")
    assert await store.list_tapes() == []
    assert await tape.query().all() == []
    async with tape.fork_tape(run_id="run-1") as fork:
        await fork.append(say("first"))
    entries = await tape.query().all()
    assert [entry.id for entry in entries] == [1, 2]
    assert broken_receipts(entries) == []


async def test_a_held_session_is_not_deleted(store: AnyStore) -> None:
    tape = Tape("t", store)
    async with tape.fork_tape(run_id="run-7") as fork:
        await fork.append(say("kept"))
        with pytest.raises(SessionBusy, match="run-7"):
            await store.delete("t")
    assert texts(await tape.query().all()) == ["kept"]
