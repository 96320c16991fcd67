"""Entries: what is taken, how it is stored, and that what is read back is what was written."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bub_redis.errors import InvalidInput
from bub_redis.tape import InMemoryTapeStore, Tape, TapeEntry
from bub_redis.tape.entry import MAX_ENTRY_BYTES, MAX_KIND_CHARS, StoredEntry

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=8,
)


def tape() -> Tape:
    return Tape("t", InMemoryTapeStore())


@settings(max_examples=50)
@given(payload=st.dictionaries(st.text(), json_values), meta=st.dictionaries(st.text(), json_values))
def test_every_json_object_comes_back_as_it_was(payload: dict[str, Any], meta: dict[str, Any]) -> None:
    entry = TapeEntry(7, "x.custom", payload, meta)
    assert TapeEntry.decode(7, entry.encode()) == entry


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b", "\udc00\ud800", "é\ud83d\ud83d😀"])
def test_half_characters_come_back_as_they_were(text: str) -> None:  # cases 65 and 185
    stored = TapeEntry.message({"role": "user", "content": text}).encode()
    stored.payload.decode("utf-8")
    assert TapeEntry.decode(1, stored).payload["content"] == text


def test_two_halves_that_belong_together_come_back_as_one_character() -> None:
    stored = TapeEntry.message({"role": "user", "content": "\ud83d\ude00"}).encode()
    assert TapeEntry.decode(1, stored).payload["content"] == "😀"


@pytest.mark.parametrize("char", ["\0", "\u2028", "\u2029", "\x85", "\x0b", "\x1e", "\r", "\n", "\U0001f600"])
def test_odd_characters_come_back_as_they_were(char: str) -> None:  # cases 72 and 189
    entry = TapeEntry.message({"role": "user", "content": f"a{char}b"})
    assert TapeEntry.decode(0, entry.encode()) == entry


def test_text_is_stored_as_it_reads() -> None:  # case 84: what is searched is not escapes
    assert "项目配置 é".encode() in TapeEntry.message({"content": "项目配置 é"}).encode().payload


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
async def test_numbers_that_are_no_json_are_refused(number: float) -> None:  # case 69
    with pytest.raises(InvalidInput, match="not JSON"):
        TapeEntry.event("measured", {"value": [number]}).encode()


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, ValueError("x"), object(), 1j])
async def test_what_is_no_json_is_refused_and_the_next_append_is_fine(value: object) -> None:  # case 70
    store = tape()
    good = TapeEntry.event("good")
    with pytest.raises(InvalidInput, match="the payload of a event entry is not JSON"):
        await store.append(good, TapeEntry.event("bad", {"value": value}))
    with pytest.raises(InvalidInput, match="the meta of a event entry is not JSON"):
        await store.append(good, TapeEntry.event("bad", value=value))
    assert await store.query().all() == []
    assert [entry.id for entry in await store.append(good)] == [1]


def test_nesting_without_end_is_refused() -> None:
    nested: list[Any] = []
    nested.append(nested)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (nested, deep):
        with pytest.raises(InvalidInput, match="not JSON"):
            TapeEntry.event("deep", {"value": value}).encode()


async def test_keys_that_are_numbers_become_text_at_once() -> None:  # case 71
    store = tape()
    (appended,) = await store.append(TapeEntry.event("counted", {1: "a"}))  # type: ignore[dict-item]
    assert appended.payload["data"] == {"1": "a"}
    assert await store.query().all() == [appended]


async def test_big_integers_and_empty_lists_stay_what_they_are() -> None:  # case 135
    store = tape()
    data = {"big": 2**53 + 1, "bigger": 10**40, "none": [], "sum": 0.1 + 0.2}
    await store.append(TapeEntry.event("numbers", data))
    assert (await store.query().all())[0].payload["data"] == data


async def test_a_kind_that_nobody_knows_comes_back() -> None:  # cases 14 and 51
    store = tape()
    await store.append(TapeEntry(0, "x.custom", {"a": 1}))
    assert [entry.kind for entry in await store.query().kinds("x.custom").all()] == ["x.custom"]


@pytest.mark.parametrize("kind", ["", "a\nb", "x" * (MAX_KIND_CHARS + 1)])
def test_a_kind_that_cannot_be_stored_is_refused(kind: str) -> None:
    with pytest.raises(InvalidInput, match="kind is 1 to 64"):
        TapeEntry(0, kind, {}).encode()


def test_an_entry_over_the_limit_is_refused_with_its_size() -> None:
    with pytest.raises(InvalidInput, match="over the limit"):
        TapeEntry.message({"content": "x" * MAX_ENTRY_BYTES}).encode()


async def test_the_date_and_the_id_are_those_of_the_append() -> None:  # cases 6, 39, 40 and 59
    store = tape()
    entry = TapeEntry(0, "event", {"name": "old"}, {}, "2020-01-02T03:04:05.000006+00:00")
    (appended,) = await store.append(entry)
    (read,) = await store.query().all()
    assert (entry.id, appended.id, read.id) == (0, 1, 1)
    assert read.date == appended.date == entry.date


async def test_changing_what_was_appended_or_read_changes_nothing_stored() -> None:  # case 88
    store = tape()
    message = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    await store.append(TapeEntry.message(message))
    message["content"][0]["text"] = "changed"  # type: ignore[index]
    (await store.query().all())[0].payload["content"].clear()
    assert (await store.query().all())[0].payload["content"] == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize("payload", [b"[]", b"{", b"\xff", b"null"])
def test_bytes_that_no_encode_wrote_are_named(payload: bytes) -> None:
    with pytest.raises(ValueError):
        TapeEntry.decode(1, StoredEntry(b"event", payload, b"{}", b"2020-01-01T00:00:00+00:00"))


@pytest.mark.parametrize("text", ["\ud83d" + "\ude00", "\ud83d" + "\ude00 and \ud83d", "\ude00\ud83d"], ids=ascii)
def test_what_is_read_encodes_to_what_was_stored(text: str) -> None:
    """Receipts are proved from entries that were read, also where halves of a character came together (case 65)."""
    stored = TapeEntry.message({"role": "user", "content": text}).encode()
    assert TapeEntry.decode(1, stored).encode() == stored
