"""Names: which are taken, and that no two of them meet in one key."""

from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bub_redis.errors import InvalidInput
from bub_redis.tape import InMemoryTapeStore, Tape, session_tape_name
from bub_redis.tape.names import MAX_NAME_CHARS, check_tape_name, check_turn_id, encode_name

ODD_NAMES = ["a/b", "..", "x" * MAX_NAME_CHARS, "{a}", "a}b{", "a:b", "é", "e\u0301", "😀", " ", "%2F", "*", "a__b"]
UNFIT_NAMES = ["", "a\nb", "a\0b", "\x7f", "\x85", "half \ud83d", "x" * (MAX_NAME_CHARS + 1)]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_odd_names_are_names(name: str) -> None:  # cases 64 and 75
    store = InMemoryTapeStore()
    await Tape(name, store).append_event("there")
    assert await store.list_tapes() == [name]


@pytest.mark.parametrize("name", UNFIT_NAMES)
def test_names_that_no_key_should_hold_are_refused(name: str) -> None:  # case 75
    for check in (check_tape_name, check_turn_id, session_tape_name):
        with pytest.raises(InvalidInput):
            check(name)


def test_two_names_never_share_a_key() -> None:  # cases 64 and 75
    assert len({encode_name(name) for name in ODD_NAMES}) == len(ODD_NAMES)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_name_in_a_key_is_plain_and_reads_back(name: str) -> None:
    encoded = encode_name(name)
    assert unquote(encoded) == name
    assert not set(encoded) & set("{}:/* \n")


def test_a_session_id_is_its_tapes_name() -> None:
    assert session_tape_name("customer-42") == "customer-42"


def test_in_a_workspace_a_tape_is_named_as_bub_names_it(tmp_path: Path) -> None:
    name = session_tape_name("customer-42", tmp_path)
    assert name == session_tape_name("customer-42", tmp_path / "sub" / "..")
    assert name != session_tape_name("customer-42", tmp_path / "other")
    workspace, session = name.split("__")
    assert (len(workspace), session) == (16, "cd8e59ee8a860085")


def test_a_session_cannot_pass_for_a_sidecar() -> None:
    with pytest.raises(InvalidInput, match="marks a sidecar"):
        session_tape_name("a__sidecar__spill")


async def test_sidecars_are_tapes_that_are_not_listed() -> None:  # case 76
    store = InMemoryTapeStore()
    for name in ("b", "a", "a__sidecar__spill"):
        await Tape(name, store).append_event("there")
    assert await store.list_tapes() == ["a", "b"]


def test_the_mark_of_retried_turns_is_not_the_senders() -> None:
    with pytest.raises(InvalidInput, match="retry of a dead turn"):
        check_turn_id("msg-1~2")
