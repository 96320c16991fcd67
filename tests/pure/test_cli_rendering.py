"""Entries as a person reads them: one line each, whatever a tape holds."""

import pytest

from bub_redis.cli.rendering import call_text, entry_lines, summary
from bub_redis.tape import TapeEntry


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (TapeEntry.message({"role": "user", "content": "a\n\n b"}), "user: a b"),
        (TapeEntry.message({"role": "user", "content": [{"type": "text", "text": "see"}]}), "user: see"),
        (TapeEntry.message({"role": "assistant", "content": None}), "assistant: null"),
        (TapeEntry.system("Be brief."), "Be brief."),
        (TapeEntry.tool_call([{"id": "1", "name": "f", "arguments": '{"x": "1"}'}]), 'f(x="1")'),
        (TapeEntry.tool_call([{"id": "1", "name": "f", "arguments": "{"}], content="Wait."), "Wait. f({)"),
        (TapeEntry.tool_result(["a", {"b": 1}], ["1", "2"]), 'a · {"b": 1}'),
        (TapeEntry.anchor("start", {"owner": "human"}), "start owner=human"),
        (TapeEntry.event("loop.finish", {"steps": 2, "error": None}), "loop.finish steps=2"),
        (TapeEntry.error("provider", "no answer"), "provider: no answer"),
        (TapeEntry(0, "note", {"by": "hand"}), '{"by": "hand"}'),
        (TapeEntry(0, "message", {}), "{}"),
    ],
)
def test_what_an_entry_says(entry: TapeEntry, said: str) -> None:
    assert summary(entry).rstrip() == said


@pytest.mark.parametrize(
    ("arguments", "shown"), [("", "f()"), ("[1]", "f([1])"), ({"a": 1}, "f(a=1)"), (None, "f()"), ("null", "f(null)")]
)
def test_arguments_as_models_write_them(arguments: object, shown: str) -> None:
    assert call_text({"name": "f", "arguments": arguments}) == shown


def test_a_call_of_another_shape_is_shown_as_it_is() -> None:
    assert call_text({"function": {"name": "f"}}) == '{"function": {"name": "f"}}'


def test_lines_are_cut_by_cells_and_not_by_characters() -> None:
    entry = TapeEntry(1, "message", {"role": "user", "content": "宽" * 40}, date="2026-01-02T03:04:05Z")
    _, line = entry_lines([entry], 50)
    assert line.cell_len <= 50
    assert line.plain.endswith("…")


def test_each_day_has_a_line_and_times_are_utc() -> None:
    dates = ["2026-01-01T23:59:59+00:00", "2026-01-02T01:00:00+02:00", "2026-01-02T00:00:00Z", "some day"]
    lines = [line.plain for line in entry_lines([TapeEntry(n, "x", {}, date=d) for n, d in enumerate(dates, 1)], None)]
    assert lines == [
        "2026-01-01 UTC",
        "1  23:59:59.000  x            {}",
        "2  23:00:00.000  x            {}",
        "2026-01-02 UTC",
        "3  00:00:00.000  x            {}",
        "4  some day  x            {}",
    ]
