"""Spill: large results go to a sidecar, whole, and come back byte for byte."""

import asyncio
import re
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bub_redis.errors import InvalidInput
from bub_redis.storage import RedisTapeStore
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape import InMemoryTapeStore, SpillStore, Tape, TapeEntry, TapeQuery
from bub_redis.tape.chunks import CHUNK_BYTES, utf8_chunks
from bub_redis.tape.fork import Fork
from bub_redis.tape.receipt import broken_receipts
from bub_redis.tape.spill import MAX_READ_CHUNKS, PREVIEW_CHARS
from tests.redis.conftest import AnyStore

THRESHOLD_TOKENS = 50
SPILL = SpillStore(threshold_tokens=THRESHOLD_TOKENS)


def tape_on(store: AnyStore, spill: SpillStore = SPILL) -> Tape:
    return Tape("t", store, sidecars=[spill])


async def spilled(tape: Tape, result: Any, spill: SpillStore = SPILL) -> str:
    """Spill a result and return its handle."""
    shown = await spill.spill(tape, result, tool="work", run_id="r")
    found = re.search(r"handle='(\w+)'", shown)
    assert found is not None
    return found[1]


async def whole(tape: Tape, handle: str) -> str:
    return "".join([chunk async for chunk in SPILL.content(tape, handle)])


# What is spilled


@pytest.mark.parametrize(("extra", "is_spilled"), [(-1, False), (0, True), (1, True)])
@pytest.mark.parametrize("threshold_tokens", [4096, 1])
async def test_the_threshold_is_four_characters_a_token(threshold_tokens: int, extra: int, is_spilled: bool) -> None:
    """Case 117."""
    spill = SpillStore(threshold_tokens=threshold_tokens)
    tape = tape_on(InMemoryTapeStore(), spill)
    text = "x" * (4 * threshold_tokens + extra)
    shown = await spill.spill(tape, text, tool="work", run_id="r")
    assert (shown != text) is is_spilled


@pytest.mark.parametrize(
    "result",
    [
        "x" * 500,
        [{"row": n, "name": "日本語"} for n in range(100)],
        {"type": "image", "media_type": "image/png", "data": "aGk=" * 200},
        [["nested"] * 100],
    ],
    ids=["text", "list", "image", "nested"],
)
async def test_every_form_of_a_result_counts(store: AnyStore, result: Any) -> None:
    """Case 124: a model would read it as text, so that text is what is kept."""
    tape = tape_on(store)
    handle = await spilled(tape, result)
    text = await whole(tape, handle)
    assert text == result if isinstance(result, str) else text.startswith(("[", "{"))
    assert SPILL.name not in {entry.payload.get("name") for entry in await tape.query().all()}


async def test_the_main_tape_gets_a_preview_and_an_event_that_no_model_sees(store: AnyStore) -> None:
    """Case 21: what is spilled is in no search and no count of the main tape."""
    tape = tape_on(store)
    text = "head" + "x" * 100_000 + "needle" + "x" * 100_000 + "tail"
    shown = await SPILL.spill(tape, text, tool="work", run_id="r")
    assert len(shown) < PREVIEW_CHARS + 400
    assert "head" in shown and shown.endswith("tail") and "needle" not in shown
    (event,) = await tape.query().all()
    assert event.payload["name"] == "spill.write"
    assert (event.payload["data"]["status"], event.payload["data"]["bytes"]) == ("ok", len(text))
    assert event.meta == {"run_id": "r", "context": False}
    assert await tape.search("needle") == []


async def test_a_threshold_of_0_stops_new_spills_only(store: AnyStore) -> None:
    """Case 125."""
    handle = await spilled(tape_on(store), "x" * 1000)
    off = SpillStore(threshold_tokens=0)
    tape = tape_on(store, off)
    assert await off.spill(tape, "y" * 100_000, tool="work", run_id="r") == "y" * 100_000
    page = await off.read(tape, handle)
    assert page is not None and page.content == "x" * 1000


def test_a_threshold_is_not_negative() -> None:
    with pytest.raises(InvalidInput):
        SpillStore(threshold_tokens=-1)


def test_an_error_is_cut_instead() -> None:
    """Case 123."""
    small = {"kind": "tool", "message": "no"}
    assert SPILL.capped(small) == small
    large = SPILL.capped({"kind": "tool", "message": "m" * 10_000, "details": [{"problem": "d" * 10_000}]})
    assert large["kind"] == "tool"
    assert len(str(large)) < 3 * PREVIEW_CHARS


# Chunks

TEXTS = {
    "ascii": "abcdefgh" * 10_000,
    "cjk": "项目日本語한국어" * 5_000,
    "emoji": "👩‍👩‍👧🎉" * 5_000,
    "combining": "e\u0301n\u0303" * 10_000,
    "odd": "\x00\u2028\x85\r\n" * 10_000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_a_result_comes_back_byte_for_byte_from_both_ends(store: AnyStore, text: str) -> None:
    """Case 118."""
    tape = tape_on(store)
    handle = await spilled(tape, text)
    manifest = await SPILL.manifest(tape, handle)
    assert manifest is not None
    assert (manifest.bytes, manifest.chars) == (len(text.encode()), len(text))
    for from_end in (False, True):
        cursor, pages = 0, []
        while True:
            page = await SPILL.read(tape, handle, cursor=cursor, count=3, from_end=from_end)
            assert page is not None
            pages.append(page.content)
            cursor = page.next_cursor
            if page.complete:
                break
        assert "".join(reversed(pages) if from_end else pages) == text
    assert await SPILL.intact(tape, handle)


def joined(text: str) -> str:
    """The text with halves of a character that stand together as that character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@given(st.text(st.characters(exclude_categories=[]), min_size=1), st.integers(1, 4000))
def test_chunks_are_small_and_cut_no_character(part: str, times: int) -> None:
    """Case 118, for any text: at most CHUNK_BYTES each, and nothing lost; halves that stand together are made one."""
    text = part * times
    chunks = list(utf8_chunks(text))
    assert "".join(chunk for chunk, _ in chunks) == joined(text)
    assert all(0 < len(encoded) <= CHUNK_BYTES for _, encoded in chunks)
    assert all(chunk.encode("utf-8", "surrogatepass") == encoded for chunk, encoded in chunks)


@pytest.mark.parametrize("half", ["\ud83d", "\ude00", "\ud83d\ude00"])
async def test_half_characters_are_kept_and_read_back(store: AnyStore, half: str) -> None:
    """Case 119: never an exception; two halves that stand together are their one character from then on."""
    tape = tape_on(store)
    text = f"x{half}y" * 20_000
    handle = await spilled(tape, text)
    assert await whole(tape, handle) == joined(text)
    assert await SPILL.intact(tape, handle)


# Reading


async def test_at_most_four_chunks_are_read_at_once(store: AnyStore) -> None:
    tape = tape_on(store)
    handle = await spilled(tape, "x" * CHUNK_BYTES * 6)
    page = await SPILL.read(tape, handle, count=100)
    assert page is not None
    assert (page.start, page.stop, page.complete) == (0, MAX_READ_CHUNKS, False)
    beyond = await SPILL.read(tape, handle, cursor=6)
    assert beyond is not None
    assert (beyond.content, beyond.complete) == ("", True)


@pytest.mark.parametrize("handle", ["unknown", "", "../x", "x" * 1000, "\x00"])
async def test_an_unknown_handle_is_not_stored(store: AnyStore, handle: str) -> None:
    assert await SPILL.read(tape_on(store), handle) is None


async def test_chunks_without_a_manifest_are_not_there(store: AnyStore) -> None:
    """Case 121: nothing partial is ever shown."""
    tape = tape_on(store)
    handle = await spilled(tape, "x" * 100_000)
    spill_tape = tape.sidecar_tape_name("spill")
    entries = await Tape(spill_tape, store).query().all()
    await tape.reset_sidecar("spill")
    await store.append(spill_tape, *entries[:-2])
    assert await SPILL.read(tape, handle) is None
    await tape.reset_sidecar("spill")
    await store.append(spill_tape, *entries[2:])
    assert await SPILL.read(tape, handle) is None
    assert not await SPILL.intact(tape, handle)


async def test_chunks_that_nobody_completed_are_swept(store: AnyStore) -> None:
    """Case 121: they are removable; what is whole stays, and what may still be completed, too."""
    tape = tape_on(store)
    kept = await spilled(tape, "k" * 40_000)
    spill_tape = tape.sidecar_tape_name("spill")
    await tape.append(TapeEntry.message({"role": "user", "content": "a"}))
    for handle in ("left", "over"):
        for index in range(3):
            chunk = TapeEntry(0, "tool_result", {"results": ["x"]}, {"spill_handle": handle, "spill_chunk": index})
            await store.append(spill_tape, TapeEntry.anchor(f"spill/{handle}/chunk/{index}"), chunk)
    assert await SPILL.sweep(tape) == 0
    assert await SPILL.sweep(tape, older_than=timedelta(0)) == 6
    assert await SPILL.sweep(tape, older_than=timedelta(0)) == 0
    assert await whole(tape, kept) == "k" * 40_000
    assert len(await TapeQuery(spill_tape, store).all()) == 2 * 3 + 2
    assert [entry.payload["name"] for entry in await tape.query().kinds("event").all()] == [
        "spill.write",
        "spill.sweep",
        "turn.receipt",
    ]
    assert broken_receipts(await tape.query().all()) == []


async def test_parallel_spills_do_not_mix(store: AnyStore) -> None:
    """Case 120: addressed by handle and index, whatever stands beside it."""
    tape = tape_on(store)
    results = [letter * (CHUNK_BYTES * 5 + n) for n, letter in enumerate("abcdef")]
    async with tape.fork_tape() as fork:
        handles = await asyncio.gather(*(spilled(fork, result) for result in results))
        assert [await whole(fork, handle) for handle in handles] == results
    assert [await whole(tape, handle) for handle in handles] == results


async def test_a_spill_that_bub_wrote_is_read(store: AnyStore) -> None:
    """Bub writes anchor and chunk one by one, so two of its spills may stand between each other; it has no digest."""
    tape = tape_on(store)
    spill_tape = tape.sidecar_tape_name("spill")

    def chunk(handle: str, index: int, text: str) -> tuple[TapeEntry, TapeEntry]:
        result = TapeEntry(0, "tool_result", {"results": [text]}, {"spill_handle": handle, "spill_chunk": index})
        return TapeEntry.anchor(f"spill/{handle}/chunk/{index}"), result

    def manifest(handle: str) -> tuple[TapeEntry, TapeEntry]:
        data = {"handle": handle, "chunks": 2, "bytes": 2, "chars": 2, "lines": 1, "tool": "work"}
        return TapeEntry.anchor(f"spill/{handle}/manifest"), TapeEntry.event("spill.manifest", data)

    mixed = [
        entry
        for index in range(2)
        for pair in zip(chunk("a", index, f"a{index}"), chunk("b", index, f"b{index}"), strict=True)
        for entry in pair
    ]
    await store.append(spill_tape, *mixed, *manifest("a"), *manifest("b"))
    assert [await whole(tape, handle) for handle in "ab"] == ["a0a1", "b0b1"]


# With forks


async def test_a_spill_in_a_fork_counts_with_its_merge(store: AnyStore) -> None:
    """Case 22: the handle is on the main tape when the chunks are in the sidecar."""
    tape = tape_on(store)
    async with tape.fork_tape() as fork:
        handle = await spilled(fork, "x" * 100_000)
        assert await whole(fork, handle) == "x" * 100_000
        assert await SPILL.read(tape, handle) is None
    assert await whole(tape, handle) == "x" * 100_000
    assert broken_receipts(await tape.query().all()) == []


async def test_a_spill_in_a_dropped_fork_leaves_nothing(store: AnyStore) -> None:
    """Case 22."""
    tape = tape_on(store)
    async with tape.fork_tape(merge_back=False) as fork:
        handle = await spilled(fork, "x" * 100_000)
        assert await whole(fork, handle) == "x" * 100_000
    assert await Tape(tape.sidecar_tape_name("spill"), store).query().all() == []


async def test_a_spill_that_cannot_be_stored_leaves_a_preview(redis_store: RedisTapeStore) -> None:
    """A sidecar that fails never blocks the main tape."""
    tape = tape_on(redis_store)
    keys = TapeKeys(redis_store.namespace, tape.sidecar_tape_name("spill"))
    await redis_store.server.commands.set(keys.tape, "something else")
    async with tape.fork_tape() as fork:
        shown = await SPILL.spill(fork, "x" * 10_000, tool="work", run_id="r")
    assert "could not be stored" in shown
    events = [entry.payload for entry in await tape.query().kinds("event").all()]
    assert (events[0]["name"], events[0]["data"]["status"]) == ("spill.write", "error")


async def test_no_write_of_a_spill_is_larger_than_a_megabyte(
    redis_store: RedisTapeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit of 50 MB would keep a server from answering anybody."""
    sizes: list[int] = []
    written = redis_store.append_fenced

    async def measured(grant: Any, tape: str, head: Any, entries: Any) -> Any:
        sizes.append(sum(entry.encode().size_bytes for entry in entries))
        return await written(grant, tape, head, entries)

    monkeypatch.setattr(redis_store, "append_fenced", measured)
    tape = tape_on(redis_store)
    async with tape.fork_tape() as fork:
        assert isinstance(fork.store, Fork)
        await spilled(fork, "\x00x" * 1_000_000)
    assert len(sizes) > 5
    assert max(sizes) <= 1_000_000


async def test_50_mb_are_spilled_in_little_memory(redis_store: RedisTapeStore) -> None:
    """At most 4 times its size, and less than 2 KB on the main tape."""
    tape = tape_on(redis_store)
    size_bytes = 50 * 1024 * 1024
    tracemalloc.start()
    try:
        result = "x" * size_bytes
        async with tape.fork_tape() as fork:
            shown = await SPILL.spill(fork, result, tool="work", run_id="r")
            await fork.append(TapeEntry.tool_result([shown], ["c1"], run_id="r"))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * size_bytes
    stored = [entry.encode().size_bytes for entry in await tape.query().all()]
    assert sum(stored[:2]) < 2048
