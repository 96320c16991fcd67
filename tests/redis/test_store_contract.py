"""What every store does: one suite on the in-memory store, on fakeredis and on a real server."""

import asyncio
from typing import Any

import anyio
import pytest

from bub_redis.errors import ErrorKind, Fenced, InvalidInput, NotFound, SessionBusy
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.entry import MAX_ENTRY_BYTES
from bub_redis.tape.fork import Fork
from bub_redis.tape.receipt import RECEIPT_EVENT, Receipt, broken_receipts
from tests.entries import say, texts
from tests.redis.conftest import AnyStore

VALUES = [
    [],
    {},
    {"": None},
    2**53 + 1,
    10**30,
    0.1 + 0.2,
    -0.0,
    "\x00",
    "a\u2028b\u2029c\u0085d\x0be\x1ef\rg",
    "half an emoji \ud83d",
    "日本語 🎉 e\u0301",
    [[[{"deep": [True, False, None]}]]],
]


# Appending and reading


async def test_numbers_start_at_1_and_have_no_gap(store: AnyStore) -> None:
    tape = Tape("t", store)
    await tape.append(say("a"))
    await tape.append(say("b"), say("c"))
    assert [entry.id for entry in await tape.query().all()] == [1, 2, 3]


async def test_an_append_returns_what_is_read_later(store: AnyStore) -> None:
    """Cases 6 and 40: an id and a date told once are the ones read later."""
    tape = Tape("t", store)
    appended = await tape.append(say("a"), TapeEntry.event("seen", {"n": 1}, context=False))
    assert await tape.query().all() == appended


@pytest.mark.parametrize("value", VALUES, ids=ascii)
async def test_any_json_value_reads_back_equal(store: AnyStore, value: Any) -> None:
    """Cases 65, 72, 135 and 190: no store parses a payload on the way, and NUL is a character like any other."""
    tape = Tape("t", store)
    await tape.append(TapeEntry(0, "x.custom", {"value": value}, {"value": value}))
    (entry,) = await tape.query().all()
    assert (entry.kind, entry.payload, entry.meta) == ("x.custom", {"value": value}, {"value": value})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}, ValueError("x")], ids=ascii)
async def test_what_is_not_json_is_refused_before_anything_is_written(store: AnyStore, value: Any) -> None:
    """Cases 69 and 70: the whole batch is refused, and the next append is fine."""
    tape = Tape("t", store)
    with pytest.raises(InvalidInput, match="nothing was written"):
        await tape.append(say("a"), TapeEntry.event("bad", {"value": value}))
    await tape.append(say("b"))
    assert texts(await tape.query().all()) == ["b"]


async def test_changing_a_returned_entry_changes_nothing_stored(store: AnyStore) -> None:
    tape = Tape("t", store)
    await tape.append(TapeEntry.event("e", {"list": [1]}))
    (entry,) = await tape.query().all()
    entry.payload["data"]["list"].append(2)
    (again,) = await tape.query().all()
    assert again.payload["data"]["list"] == [1]


async def test_what_was_done_elsewhere_is_appended_without_a_model(store: AnyStore) -> None:
    """Case 11: another harness tells what it did, and the next view holds it."""
    tape = Tape("t", store)
    await tape.append(
        say("how many lines?"),
        TapeEntry.tool_call([{"id": "c1", "name": "wc", "arguments": "{}"}]),
        TapeEntry.tool_result(["42"], ["c1"]),
        say("42", role="assistant"),
    )
    await tape.append_event("harness.run", {"tool": "other"}, context=False)
    assert [message.text for message in await tape.read_messages()] == ["how many lines?", "", "42", "42"]


async def test_the_callers_payload_is_left_alone(store: AnyStore) -> None:
    """Case 88: also what is not text survives."""
    parts = [{"type": "text", "text": "look"}, {"type": "image", "media_type": "image/png", "data": "aGk="}]
    tape = Tape("t", store)
    await tape.append(TapeEntry.message({"role": "user", "content": parts}))
    (entry,) = await tape.query().all()
    assert entry.payload["content"] == parts == [dict(part) for part in parts]


async def test_the_same_text_twice_is_there_twice(store: AnyStore) -> None:
    """Cases 165 and 166: nothing is taken for a repeat by its content."""
    tape = Tape("t", store)
    await tape.append(say("yes"))
    await tape.append(say("yes"))
    assert texts(await tape.query().all()) == ["yes", "yes"]


async def test_a_large_payload_reads_back_and_one_over_the_limit_is_refused(
    store: AnyStore, request: pytest.FixtureRequest
) -> None:
    if "fakeredis" in request.node.name:
        pytest.skip("its socket sends no reply of 20 MB")
    tape = Tape("t", store)
    large = "é" * 10_000_000
    await tape.append(say(large))
    with pytest.raises(InvalidInput, match="over the limit"):
        await tape.append(say("a"), say("x" * MAX_ENTRY_BYTES))
    await tape.append(say("b"))
    assert [len(text) for text in texts(await tape.query().all())] == [len(large), 1]


async def test_many_appenders_get_distinct_numbers(store: AnyStore) -> None:
    """Case 73."""
    tape = Tape("t", store)
    await asyncio.gather(*(tape.append(say(str(n)), say(str(n))) for n in range(50)))
    entries = await tape.query().all()
    assert [entry.id for entry in entries] == list(range(1, 101))
    assert all(first.text == second.text for first, second in zip(entries[::2], entries[1::2], strict=True))


# Names


@pytest.mark.parametrize("pair", [("a{b}", "a"), ("a/b", "a%2Fb"), ("é", "e\u0301"), ("a:tape", "a"), ("{}", "{")])
async def test_two_names_never_share_a_tape(store: AnyStore, pair: tuple[str, str]) -> None:
    """Cases 64 and 75."""
    first, second = (Tape(name, store) for name in pair)
    await first.append(say("first"))
    await second.append(say("second"))
    assert texts(await first.query().all()) == ["first"]
    assert texts(await second.query().all()) == ["second"]


async def test_tapes_are_listed_sorted_without_sidecars_and_only_with_entries(store: AnyStore) -> None:
    """Cases 28, 54 and 76."""
    for name in ("b", "a b", "a__b__c", "b__sidecar__spill"):
        await Tape(name, store).append(say("x"))
    await Tape("never written", store).query().all()
    assert await store.list_tapes() == ["a b", "a__b__c", "b"]


# Queries


async def test_an_unknown_tape_is_empty(store: AnyStore) -> None:
    assert await Tape("nobody", store).query().all() == []


@pytest.mark.parametrize("name", [None, "missing"])
async def test_a_missing_anchor_is_not_found(store: AnyStore, name: str | None) -> None:
    """Cases 24 and 82."""
    tape = Tape("t", store)
    await tape.append(say("a"))
    query = tape.query().last_anchor() if name is None else tape.query().after_anchor(name)
    with pytest.raises(NotFound) as caught:
        await query.all()
    assert caught.value.kind is ErrorKind.NOT_FOUND


async def test_a_slice_starts_behind_the_latest_anchor_of_its_name(store: AnyStore) -> None:
    """Case 64, also with an empty name."""
    tape = Tape("t", store)
    for text in ("a", "b", "c"):
        await tape.append(TapeEntry.anchor(""), say(text))
    await tape.append(TapeEntry.anchor("other"), say("d"))
    assert texts(await tape.query().after_anchor("").all()) == ["c", "d"]
    assert texts(await tape.query().last_anchor().all()) == ["d"]


async def test_an_anchor_without_a_name_is_no_anchor(store: AnyStore) -> None:
    """Case 87."""
    tape = Tape("t", store)
    await tape.append(TapeEntry(0, "anchor", {}), say("a"))
    with pytest.raises(NotFound):
        await tape.query().last_anchor().all()


async def test_the_anchor_is_found_before_kinds_are_filtered(store: AnyStore) -> None:
    """Case 54: history before the anchor never leaks; the limit cuts last."""
    tape = Tape("t", store)
    await tape.append(say("before"), TapeEntry.anchor("p"), TapeEntry.event("e"), say("x"), say("y"))
    query = tape.query().last_anchor().kinds("message")
    assert texts(await query.all()) == ["x", "y"]
    assert texts(await query.limit(1).all()) == ["x"]
    assert await query.limit(0).all() == []


async def test_a_long_slice_is_read_whole(store: AnyStore) -> None:
    tape = Tape("t", store)
    await tape.append(*(say(str(n)) for n in range(1001)))
    assert texts(await tape.query().all()) == [str(n) for n in range(1001)]


# Anchors


async def test_a_handoff_is_anchor_and_event_at_once(store: AnyStore) -> None:
    """Case 101."""
    tape = Tape("t", store)
    anchor, event = await tape.handoff(name="next", state={"why": "long"})
    assert [entry.kind for entry in await tape.query().all()] == ["anchor", "event"]
    assert event.payload == {"name": "handoff", "data": {"name": "next", "state": {"why": "long"}}}
    assert event.id == anchor.id + 1


async def test_racing_bootstraps_leave_one_anchor(store: AnyStore) -> None:
    """Cases 100, 147 and 180: created if absent, in one step."""
    tape = Tape("t", store)
    await asyncio.gather(*(tape.ensure_bootstrap_anchor() for _ in range(20)))
    names = [entry.anchor_name for entry in await tape.query().kinds("anchor").all()]
    assert names == ["session/start"]


# Forks


async def test_nothing_of_a_fork_is_on_the_tape_before_its_merge(store: AnyStore) -> None:
    """Case 2."""
    tape = Tape("t", store)
    async with tape.fork_tape() as fork:
        await fork.append(say("a"))
        assert await tape.query().all() == []
        assert texts(await fork.query().all()) == ["a"]
    assert texts(await tape.query().all()) == ["a"]


async def test_a_merge_ends_with_a_receipt(store: AnyStore) -> None:
    tape = Tape("t", store)
    async with tape.fork_tape(run_id="run-1") as fork:
        await fork.append(say("a"), TapeEntry.message({"role": "assistant", "content": "b"}))
    *_, last = await tape.query().all()
    assert last.payload["name"] == RECEIPT_EVENT
    assert last.meta == {"context": False}
    receipt = Receipt.from_entry(last, f"0-{last.id}")
    assert (receipt.turn, receipt.status, receipt.first, receipt.answer_entry, receipt.last) == (
        "run-1",
        "completed",
        1,
        2,
        3,
    )


async def test_a_session_is_free_whenever_its_taker_is_cancelled(store: AnyStore) -> None:
    tape = Tape("t", store)

    async def note() -> None:
        async with tape.fork_tape(wait_s=0) as fork:
            await fork.append(say("hello"))

    for steps in range(60):
        work = asyncio.create_task(note())
        for _ in range(steps):
            await asyncio.sleep(0)  # noqa: TID251 - a step of the event loop, not a time
        work.cancel()
        await asyncio.wait({work})
        async with tape.fork_tape(merge_back=False, wait_s=0):
            pass


async def test_a_merge_ends_in_a_scope_that_cancels_each_await(store: AnyStore) -> None:
    """As web frameworks on anyio do where the client has gone."""
    tape = Tape("t", store)
    with anyio.CancelScope() as scope:
        async with tape.fork_tape() as fork:
            await fork.append(say("large " * 1_000_000))
            scope.cancel()
            await anyio.sleep_forever()
    assert [entry.kind for entry in await tape.query().all()] == ["message", "event"]
    # The session was given back, too.
    async with tape.fork_tape(wait_s=0):
        pass


async def test_a_fork_answers_as_one_tape_of_parent_and_overlay(store: AnyStore) -> None:
    """Cases 38, 54 and 90."""
    tape = Tape("t", store)
    await tape.append(TapeEntry.anchor("old"), say("parent"))
    async with tape.fork_tape() as fork:
        await fork.append(say("overlay"))
        assert texts(await fork.query().last_anchor().all()) == ["parent", "overlay"]
        assert texts(await fork.query().last_anchor().kinds("message").limit(1).all()) == ["parent"]
        await fork.append(TapeEntry.anchor("new"), say("after"))
        assert texts(await fork.query().last_anchor().all()) == ["after"]
        assert texts(await fork.query().after_anchor("old").all()) == ["parent", "overlay", "after"]
        assert [entry.id for entry in await fork.query().all()] == [1, 2, 3, 4, 5]
        with pytest.raises(NotFound):
            await fork.query().after_anchor("nowhere").all()


async def test_a_fork_does_not_see_what_others_append_meanwhile(store: AnyStore) -> None:
    """Both stay valid: the direct append comes first, the block behind it, whole."""
    tape = Tape("t", store)
    await tape.append(say("before"))
    async with tape.fork_tape() as fork:
        await fork.append(say("mine"))
        await tape.append(TapeEntry.anchor("theirs"), say("theirs"))
        assert texts(await fork.query().all()) == ["before", "mine"]
        with pytest.raises(NotFound):
            await fork.query().last_anchor().all()
    assert texts(await tape.query().all()) == ["before", "theirs", "mine"]


async def test_a_fork_sees_the_older_anchor_where_others_used_its_name_again(store: AnyStore) -> None:
    tape = Tape("t", store)
    await tape.append(TapeEntry.anchor("p"), say("seen"))
    async with tape.fork_tape() as fork:
        await tape.append(TapeEntry.anchor("p"), say("unseen"))
        assert texts(await fork.query().after_anchor("p").all()) == ["seen"]


async def test_an_exception_merges_what_there_was_with_open_calls_closed(store: AnyStore) -> None:
    """Case 102."""
    tape = Tape("t", store)
    with pytest.raises(RuntimeError, match="boom"):
        async with tape.fork_tape() as fork:
            await fork.append(TapeEntry.tool_call([{"id": "c1", "name": "f", "arguments": "{}"}]))
            raise RuntimeError("boom")
    call, result, receipt = await tape.query().all()
    assert result.payload["call_ids"] == [call.payload["calls"][0]["id"]]
    assert receipt.payload["data"]["status"] == "failed"
    assert receipt.payload["data"]["error"] == "RuntimeError: boom"


async def test_a_fork_without_merge_leaves_the_parent_as_it_was(store: AnyStore) -> None:
    """Cases 3 and 45, also on an exception."""
    tape = Tape("t", store)
    await tape.append(say("a"))
    before = await tape.query().all()
    async with tape.fork_tape(merge_back=False) as fork:
        await fork.append(say("b"))
    with pytest.raises(RuntimeError):
        async with tape.fork_tape(merge_back=False) as fork:
            await fork.append(say("c"))
            raise RuntimeError
    assert await tape.query().all() == before


async def test_a_merge_happens_once_per_run_id(store: AnyStore) -> None:
    """Cases 94, 144 and 167: a repeat writes nothing."""
    tape = Tape("t", store)
    for _ in range(2):
        async with tape.fork_tape(run_id="run-1") as fork:
            await fork.append(say("once"))
    assert texts(await tape.query().all()) == ["once"]


async def test_a_repeated_commit_returns_the_receipt_of_then(store: AnyStore) -> None:
    async with store.session("t", "run-1", 1.0) as grant:
        fork = await Fork.open(store, grant)
        await fork.append("t", say("a"))
        commit = await fork.prepare("completed")
        first = await store.commit(commit)
        assert await store.commit(commit) == first
    assert len(await Tape("t", store).query().all()) == 2


async def test_forks_of_one_session_follow_each_other(store: AnyStore) -> None:
    """Cases 50, 95 and 179: whole blocks, each fork seeing what was merged before it."""
    tape = Tape("t", store)

    async def run(name: str) -> None:
        async with tape.fork_tape(wait_s=20) as fork:
            seen = len(texts(await fork.query().all()))
            await fork.append(say(f"{name} {seen}"), say(f"{name} {seen}"))

    await asyncio.gather(*(run(name) for name in "abcd"))
    found = texts(await tape.query().all())
    assert found[::2] == found[1::2]
    assert [text.split()[1] for text in found[::2]] == ["0", "2", "4", "6"]


async def test_a_session_that_stays_held_is_busy(store: AnyStore) -> None:
    tape = Tape("t", store)
    async with tape.fork_tape():
        with pytest.raises(SessionBusy, match="t"):
            async with tape.fork_tape(wait_s=0.05):
                raise AssertionError("granted twice")
    async with tape.fork_tape(wait_s=0.05) as fork:
        await fork.append(say("free again"))
    assert texts(await tape.query().all()) == ["free again"]


async def test_a_commit_without_the_last_grant_is_refused_whole(store: AnyStore) -> None:
    """Cases 176, 181 and 183: the fence decides, whoever holds the lock."""
    async with store.session("t", "slow", 1.0) as slow:
        fork = await Fork.open(store, slow)
        await fork.append("t", say("late"))
    async with store.session("t", "quick", 1.0) as quick:
        assert quick.token > slow.token
    with pytest.raises(Fenced):
        await fork.merge("completed")
    assert await Tape("t", store).query().all() == []


async def test_receipts_prove_the_tape(store: AnyStore) -> None:
    """Also what others appended before, while and after a fork was open is covered, and each entry once."""
    tape = Tape("t", store)
    await tape.ensure_bootstrap_anchor()
    for name in "abc":
        async with tape.fork_tape() as fork:
            await tape.append(say(f"beside {name}"))
            await fork.append(say(name))
        await tape.append(say(f"after {name}"))
    entries = await tape.query().all()
    receipts = [entry.id for entry in entries if entry.payload.get("name") == RECEIPT_EVENT]
    assert broken_receipts(entries) == []
    forged = [say("forged") if entry.text == "beside a" else entry for entry in entries]
    forged = [TapeEntry(n, e.kind, e.payload, e.meta, e.date) for n, e in enumerate(forged, start=1)]
    assert broken_receipts(forged) == [receipts[1]]
