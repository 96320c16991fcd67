"""Receipts: a chain of digests over all that was merged, which anybody can redo from a plain export."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bub_redis.tape import InMemoryTapeStore, Receipt, Tape, TapeEntry
from bub_redis.tape.receipt import LOST_TAIL_EVENT, Chain, Verification, verify_export
from tests.entries import say


async def merged(tape: Tape, *entries: TapeEntry) -> Receipt:
    async with tape.fork_tape() as fork:
        await fork.append(*entries)
    last = (await tape.query().all())[-1]
    return Receipt.from_entry(last, f"0-{last.id}")


def redone(previous: str, entries: list[TapeEntry]) -> str:
    """The digest as docs say it, from nothing but what an export holds."""
    digest = hashlib.sha256(b"%d:%s" % (len(previous), previous.encode()))
    for entry in entries:
        for value in entry.encode():
            digest.update(b"%d:%s" % (len(value), value))
    return digest.hexdigest()


async def test_a_receipt_is_the_last_entry_of_its_block() -> None:
    tape = Tape("t", InMemoryTapeStore())
    await tape.append(say("before"))
    receipt = await merged(tape, say("question"), say("answer", "assistant"))
    assert (receipt.seen, receipt.entries, receipt.first, receipt.last) == (1, 2, 2, 4)
    assert (receipt.answer, receipt.answer_entry) == (1, 3)
    assert (receipt.status, receipt.attempt, receipt.error) == ("completed", 1, None)


async def test_the_first_digest_is_redone_from_an_export() -> None:
    tape = Tape("t", InMemoryTapeStore())
    await tape.append(say("before"))
    receipt = await merged(tape, say("half \ud83d"), say("项目"))
    assert receipt.digest == redone("", (await tape.query().all())[:-1])


async def test_the_next_digest_takes_in_the_last_receipt_and_what_came_between() -> None:
    tape = Tape("t", InMemoryTapeStore())
    first = await merged(tape, say("a"))
    await tape.append(say("between"))
    second = await merged(tape, say("b"))
    assert second.digest == redone(first.digest, (await tape.query().all())[first.last - 1 : second.last - 1])


async def test_an_append_that_came_while_a_fork_was_open_belongs_to_the_next_receipt() -> None:
    tape = Tape("t", InMemoryTapeStore())
    async with tape.fork_tape() as fork:
        await fork.append(say("a"))
        await tape.append(say("meanwhile"))
    meanwhile, a, first_entry = await tape.query().all()
    first = Receipt.from_entry(first_entry, "0-3")
    assert first.digest == redone("", [a])
    second = await merged(tape, say("b"))
    assert second.seen == 3
    b = (await tape.query().all())[3]
    assert second.digest == redone(first.digest, [meanwhile, first_entry, b])


async def test_no_receipt_is_in_a_models_context() -> None:
    tape = Tape("t", InMemoryTapeStore())
    await merged(tape, say("a"))
    assert [message.text for message in await tape.read_messages()] == ["a"]


def test_lengths_keep_the_fields_apart() -> None:
    one = replace(TapeEntry.event("x"), kind="ab", payload={})
    two = replace(one, kind="a", payload={"b": 1})
    assert Chain("").add([one.encode()]).hexdigest() != Chain("").add([two.encode()]).hexdigest()


def test_a_copy_of_a_chain_goes_its_own_way() -> None:
    chain = Chain("x")
    before = chain.hexdigest()
    chain.copy().add([TapeEntry.event("y").encode()])
    assert chain.hexdigest() == before


async def test_the_callers_copy_is_json_with_the_place_of_the_block() -> None:
    receipt = await merged(Tape("t", InMemoryTapeStore()), say("a"))
    copy: dict[str, Any] = receipt.as_dict()
    assert (copy["first"], copy["last"], copy["id"]) == (1, 2, "0-2")


def test_an_entry_of_another_kind_is_no_receipt() -> None:
    with pytest.raises(ValueError, match="is no receipt"):
        Receipt.from_entry(TapeEntry.event("loop.finish"), "0-1")


# From a plain export


async def exported(tape: Tape) -> list[bytes]:
    """The tape as `tape show --json` prints it, here with ASCII escapes: how a line is written does not matter."""
    return [json.dumps(asdict(entry)).encode() + b"\n" for entry in await tape.query().all()]


async def a_tape_with_receipts() -> tuple[Tape, Receipt]:
    tape = Tape("t", InMemoryTapeStore())
    await tape.ensure_bootstrap_anchor()
    await merged(tape, say("a"), TapeEntry.event("n", {"big": 10**30, "float": 0.1 + 0.2, "nothing": -0.0}))
    await tape.append(say("beside"))
    return tape, await merged(tape, say("b"))


async def test_an_export_proves_itself() -> None:
    tape, last = await a_tape_with_receipts()
    found = verify_export(await exported(tape))
    assert found.intact
    assert (found.entries, found.receipts, found.uncovered) == (8, 2, 1)
    assert (found.begins_with, found.digest) == ("", last.digest)


async def test_an_edit_a_gap_and_a_damaged_line_are_told_apart() -> None:
    tape, _ = await a_tape_with_receipts()
    lines = await exported(tape)
    edited = [line.replace(b"beside", b"forged") for line in lines]
    assert verify_export(edited).broken == (8,)
    assert verify_export(lines[:3] + lines[4:]).misplaced == (5,)
    damaged = verify_export([*lines[:-1], lines[-1][:40] + b"\n"])
    assert (damaged.unreadable, damaged.receipts, damaged.broken) == (1, 1, ())
    assert not any(one.intact for one in map(verify_export, (edited, lines[1:], [*lines, lines[-1]])))


async def test_a_chain_goes_on_from_one_generation_to_the_next(tmp_path: Path) -> None:
    """The archive of one ends with the digest with which the next begins."""
    tape, last = await a_tape_with_receipts()
    archive = await tape.reset(archive_to=tmp_path)
    assert archive is not None
    before = verify_export(archive.read_bytes().splitlines(keepends=True))
    assert before.intact
    assert verify_export(await exported(tape)) == Verification(3, 0, (), (), 0, 3, last.digest, last.digest, ())
    await merged(tape, say("c"))
    after = verify_export(await exported(tape))
    assert after.intact
    assert before.digest == after.begins_with == last.digest != after.digest


async def test_where_a_tape_lost_its_end_is_told_and_proved() -> None:
    tape, _ = await a_tape_with_receipts()
    await merged(tape, TapeEntry.event(LOST_TAIL_EVENT, {"receipt": "9-9", "digest": "", "found": "9-8"}))
    found = verify_export(await exported(tape))
    assert (found.intact, found.lost_tails) == (True, (9,))


async def test_halves_that_stand_together_do_not_break_a_receipt() -> None:
    """They read back as one character, so that is what is written and covered (case 65)."""
    tape = Tape("t", InMemoryTapeStore())
    await merged(tape, say("\ud83d\ude00"), say("\ud83d alone"))
    assert verify_export(await exported(tape)).intact


@pytest.mark.parametrize("data", [None, {}, {"digest": 7}])
def test_an_event_that_only_looks_like_a_resets_is_an_event(data: dict[str, Any] | None) -> None:
    line = json.dumps(asdict(replace(TapeEntry.event("tape.reset", data), id=1))).encode()
    assert verify_export([line]).intact
