"""Receipts: a chain of digests over all that was merged, which anybody can redo from a plain export."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from bub_redis.tape import InMemoryTapeStore, Receipt, Tape, TapeEntry
from bub_redis.tape.receipt import Chain


def say(text: str, role: str = "user") -> TapeEntry:
    return TapeEntry.message({"role": role, "content": text})


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
