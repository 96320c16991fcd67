"""What a text query finds: what was said and done, not how it is stored."""

from typing import Any

import pytest

from bub_redis.tape import TapeEntry
from bub_redis.tape.search import folded, has_text


def message(content: Any, **more: Any) -> TapeEntry:
    return TapeEntry.message({"role": "user", "content": content, **more})


def call(arguments: Any) -> TapeEntry:
    return TapeEntry.tool_call([{"id": "call-9", "name": "weather", "arguments": arguments}], content="let me look")


IMAGE = {"type": "image", "media_type": "image/png", "data": "aGVsbG8"}
OLD_CALL = {"id": "call-9", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}

FOUND = [
    (message("Hello"), "hello"),
    (message([{"type": "text", "text": "look"}, IMAGE]), "look"),
    (message([{"type": "reasoning", "text": "hm"}]), "hm"),
    (message(["plain"]), "plain"),
    (message({"rows": [{"name": "Ada"}]}), "ada"),
    (message(None, tool_calls=[OLD_CALL]), "oslo"),
    (message("x", reasoning="because"), "because"),
    (TapeEntry.system("be kind"), "kind"),
    (call('{"city": "Oslo"}'), "oslo"),
    (call({"city": ["Oslo"]}), "oslo"),
    (call("no json: oslo"), "oslo"),
    (call("{}"), "weather"),
    (call("{}"), "let me"),
    (TapeEntry.tool_result([{"temperature": 21.5}], ["call-9"]), "21.5"),
    (TapeEntry.tool_result(["cold", ["very", {"a": "freezing"}]], ["call-9"]), "freezing"),
]


@pytest.mark.parametrize(("entry", "text"), FOUND)
def test_what_was_said_or_done_is_found(entry: TapeEntry, text: str) -> None:
    assert has_text(entry, text)


NOT_FOUND = [
    (message("x"), "user"),
    (message("x"), "content"),
    (message([{"type": "text", "text": "x"}]), "text"),
    (message([IMAGE]), "agvsbg8"),
    (message([{"type": "provider_data", "data": {"signature": "secret"}}]), "secret"),
    (TapeEntry.message({"role": "user", "content": "x"}, run_id="hello"), "hello"),
    (call('{"city": "Oslo"}'), "city"),
    (call("{}"), "call-9"),
    (TapeEntry.tool_result([{"key": True}], ["call-9"]), "key"),
    (TapeEntry.tool_result([{"key": True}], ["call-9"]), "true"),
    (TapeEntry.tool_result(["x"], ["call-9"]), "call-9"),
    (TapeEntry.anchor("hello"), "hello"),
    (TapeEntry.event("hello"), "hello"),
    (TapeEntry.error("hello", "hello"), "hello"),
    (TapeEntry(0, "x.custom", {"content": "hello"}), "hello"),
]


@pytest.mark.parametrize(("entry", "text"), NOT_FOUND)
def test_roles_keys_ids_images_and_meta_are_not_searched(entry: TapeEntry, text: str) -> None:
    """Cases 28, 33, 36 and 85."""
    assert not has_text(entry, text)


ODD: list[TapeEntry] = [
    TapeEntry(0, kind, payload)
    for kind in ("message", "system", "tool_call", "tool_result")
    for payload in (
        {},
        {"content": 7, "calls": {}, "tool_calls": "x", "results": None},
        {"calls": [None, 7, {"function": None}], "tool_calls": [[], {"function": 3}], "content": [None, [[]]]},
    )
]


@pytest.mark.parametrize("entry", ODD)
def test_odd_payloads_are_searched_without_an_error(entry: TapeEntry) -> None:
    assert not has_text(entry, "hello")


def test_deep_payloads_are_searched_to_the_bottom() -> None:
    value: Any = "bottom"
    for _ in range(5000):
        value = [value]
    assert has_text(TapeEntry.tool_result([value], ["c"]), "bottom")


SAME = [("ABC", "abc"), ("É", "e\u0301"), ("STRASSE", "straße"), ("ΣΑΣ", "σας"), ("한", "\u1112\u1161\u11ab")]


@pytest.mark.parametrize(("one", "other"), SAME, ids=ascii)
def test_case_and_composition_make_no_difference(one: str, other: str) -> None:
    """Case 84."""
    assert folded(one) == folded(other)


def test_a_letter_with_an_accent_is_another_letter() -> None:
    """Case 85: nothing is guessed."""
    assert not has_text(message("caf\u00e9"), folded("cafe"))
    assert not has_text(message("Stra\u00dfe"), folded("timeout"))
