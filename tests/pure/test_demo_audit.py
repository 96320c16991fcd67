"""The demo's checks look at entries, and see what is wrong with them."""

from dataclasses import replace

from bub_redis.cli.demo.audit import SessionAudit, by_session
from bub_redis.cli.demo.cast import Line
from bub_redis.tape import TapeEntry

LINES = [Line("s", "m1", "one"), Line("s", "m2", "two")]


def block(line: Line, status: str = "completed") -> list[TapeEntry]:
    return [
        TapeEntry.message({"role": "user", "content": line.prompt}),
        TapeEntry.tool_call([{"id": "c", "name": "f", "arguments": "{}"}]),
        TapeEntry.tool_result([1], ["c"]),
        TapeEntry.event("turn.receipt", {"turn": line.turn_id, "attempt": 2, "status": status}),
    ]


def audit(*entries: TapeEntry) -> SessionAudit:
    return SessionAudit(LINES, [replace(entry, id=number) for number, entry in enumerate(entries, 1)])


def test_a_tape_as_it_should_be() -> None:
    good = audit(*block(LINES[0]), *block(LINES[1]))
    assert (good.each_once, good.in_order, good.half_pairs, good.calls, good.attempt("m1")) == (True, True, 0, 2, 2)


def test_a_turn_twice_missing_or_failed_is_seen() -> None:
    assert not audit(*block(LINES[0]), *block(LINES[1]), *block(LINES[1])).each_once
    assert not audit(*block(LINES[0])).each_once
    assert not audit(*block(LINES[0]), *block(LINES[1], "failed")).each_once


def test_turns_in_another_order_and_a_gap_are_seen() -> None:
    swapped = audit(*block(LINES[1]), *block(LINES[0]))
    assert swapped.each_once and not swapped.in_order
    whole = audit(*block(LINES[0]), *block(LINES[1]))
    assert not replace(whole, entries=[*whole.entries[:1], *whole.entries[2:]]).in_order


def test_half_pairs_are_counted_on_both_sides() -> None:
    first, call, result, receipt = block(LINES[0])
    assert audit(first, call, receipt, *block(LINES[1])).half_pairs == 1
    assert audit(first, result, receipt, *block(LINES[1])).half_pairs == 1
    assert audit(first, call).half_pairs == 1


def test_lines_keep_their_order_within_a_session() -> None:
    other = Line("a", "m1", "x")
    assert by_session([LINES[0], other, LINES[1]]) == {"a": [other], "s": LINES}
