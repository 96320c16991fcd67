"""The file store: Bub's layout, other writers beside us, and files that a crash or an editor left behind."""

import json
import multiprocessing
import os
import stat
import tracemalloc
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bub_redis.errors import InvalidInput, Outage
from bub_redis.tape import FileTapeStore, Tape, TapeEntry, TapeQuery, adapted
from bub_redis.tape import file as files
from tests.entries import say


@pytest.fixture
def store(tmp_path: Path) -> FileTapeStore:
    return FileTapeStore(tmp_path, fsync=False)


def read(store: FileTapeStore, tape: str = "t") -> list[TapeEntry]:
    return store.fetch_all(TapeQuery(tape, adapted(store)))


def texts(store: FileTapeStore, tape: str = "t") -> list[str]:
    return [entry.text for entry in read(store, tape)]


def path(store: FileTapeStore, tape: str = "t") -> Path:
    return store.directory / f"{tape}.jsonl"


# The layout


def test_a_line_is_an_entry_as_bub_writes_it(store: FileTapeStore) -> None:
    (entry,) = store.append("t", TapeEntry.event("日本", {"n": 1}, context=False))
    assert path(store).read_text(encoding="utf-8").splitlines() == [
        '{"id": 1, "kind": "event", "payload": {"name":"日本","data":{"n":1}}, "meta": {"context":false}, '
        f'"date": "{entry.date}"}}'
    ]


def test_a_tape_that_is_removed_while_tapes_are_listed_hides_no_other(store: FileTapeStore) -> None:
    store.append("t", say("a"))
    path(store, "gone").symlink_to("nowhere")  # as a file that was listed, and is not there any more
    assert store.list_tapes() == ["t"]


def test_tapes_of_older_bub_versions_are_read(store: FileTapeStore) -> None:
    """Bub 0.5 wrote `timestamp` at first; dates, metas and ids that are missing or odd spoil nothing else."""
    path(store).write_text(
        '{"id": 4, "kind": "message", "payload": {"content": "a"}, "meta": {}, "timestamp": 1767225600.5}\n'
        '{"id": 7, "kind": "message", "payload": {"content": "b"}, "meta": null, "date": "2026-01-02T00:00:00+00:00"}\n'
        '{"id": 8, "kind": "event", "payload": {"name": "run", "data": {"cost": NaN}}}\n',
        encoding="utf-8",
    )
    first, second, third = read(store)
    assert (first.id, first.text, first.date) == (4, "a", "2026-01-01T00:00:00.500000+00:00")
    assert (second.id, second.text, second.meta) == (7, "b", {})
    assert third.payload == {"name": "run", "data": {"cost": None}}
    assert [entry.id for entry in store.append("t", say("c"))] == [9]


def test_ids_and_dates_are_the_same_after_a_restart(store: FileTapeStore) -> None:
    """Cases 6, 39 and 40."""
    appended = store.append("t", say("a"), say("b")) + store.append("t", say("c"))
    assert [entry.id for entry in appended] == [1, 2, 3]
    assert read(FileTapeStore(store.directory)) == appended


@pytest.mark.parametrize(
    "mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1e", "\r", "\r\n", "\x00", "\ud83d"], ids=ascii
)
def test_only_lf_ends_a_record(store: FileTapeStore, mark: str) -> None:
    """Cases 65, 72 and 189."""
    store.append("t", say(f"a{mark}b"))
    store.append("t", say("c"))
    assert texts(store) == [f"a{mark}b", "c"]


def test_the_default_directory_is_that_of_bub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = FileTapeStore()
    assert store.directory == tmp_path / ".bub" / "tapes"
    assert store.list_tapes() == []
    assert not store.directory.exists()


def test_tapes_are_for_their_owners_eyes(tmp_path: Path) -> None:
    store = FileTapeStore(tmp_path / "tapes")
    store.append("t", say("a"))
    assert stat.S_IMODE(path(store).stat().st_mode) == 0o600
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700


# Names


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".", "a b", "{x}", "日本 🎉", "e\u0301", "é", "a%2Fb", "C:\\x", "~"], ids=ascii
)
def test_any_name_of_a_tape_is_a_name_of_its_own_file(store: FileTapeStore, name: str) -> None:
    """Case 75."""
    store.append(name, say(name))
    assert texts(store, name) == [name]
    assert store.list_tapes() == [name]
    assert [file.parent for file in store.directory.rglob("*.jsonl")] == [store.directory]


@pytest.mark.parametrize("name", ["", "a\nb", "\x00", "x" * 201, "é" * 41], ids=ascii)
def test_a_name_that_no_file_can_have_is_refused(store: FileTapeStore, name: str) -> None:
    """Case 75: encoded names have at most 240 bytes."""
    with pytest.raises(InvalidInput):
        store.append(name, say("a"))
    assert store.list_tapes() == []


def test_only_tapes_are_listed(store: FileTapeStore) -> None:
    """Cases 28 and 76: no sidecars, no empty files, nothing that is no tape."""
    for name in ("b", "a__b__c", "0123456789abcdef__0123456789abcdef", "b__sidecar__spill"):
        store.append(name, say("x"))
    (store.directory / "empty.jsonl").touch()
    (store.directory / "a b.jsonl").write_text("{}\n", encoding="utf-8")
    (store.directory / "notes.txt").write_text("x", encoding="utf-8")
    assert store.list_tapes() == ["0123456789abcdef__0123456789abcdef", "a__b__c", "b"]


# Files that something happened to

GOOD = b'{"id": 1, "kind": "message", "payload": {"content": "a"}, "meta": {}, "date": "2026-01-01"}\n'
DAMAGED = {
    "half a line": GOOD[:40],
    "bytes that are not UTF-8": GOOD.replace(b'"a"', b'"\xff\xfe"'),
    "NUL bytes": b"\x00" * 5000,
    "no JSON": b"hello\n",
    "a list": b"[1, 2]\n",
    "no id": GOOD.replace(b'"id": 1, ', b""),
    "an id that is none": GOOD.replace(b'"id": 1', b'"id": true'),
    "a payload that is none": GOOD.replace(b'{"content": "a"}', b'"a"'),
    "deeper than any parser goes": b'{"id": 1, "kind": "x", "payload": ' + b'{"a":' * 50_000 + b"\n",
    "half a surrogate in UTF-8": GOOD.replace(b'"a"', b'"\xed\xa0\x80"'),
}


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
def test_what_is_damaged_takes_nothing_else_with_it(store: FileTapeStore, damaged: bytes) -> None:
    """Cases 66, 67, 186 and 187: before it, behind it, and told once."""
    store.append("t", say("before"))
    with path(store).open("ab") as file:
        file.write(damaged)
    with capture_logs() as logs:
        assert texts(store) == ["before"]
        (appended,) = store.append("t", say("behind"))
        assert texts(store) == ["before", "behind"]
    assert appended.id == 2
    assert [log["event"] for log in logs] == ["tape.damaged"]
    assert store.damage.count("t") == 1


def test_a_record_behind_nul_bytes_is_read(store: FileTapeStore) -> None:
    """Case 186: another writer went on in the very line."""
    path(store).write_bytes(b"\x00" * 100 + GOOD)
    assert texts(store) == ["a"]


def test_a_last_line_without_its_end_is_read_if_it_is_whole(store: FileTapeStore) -> None:
    path(store).write_bytes(GOOD.rstrip(b"\n"))
    assert texts(store) == ["a"]
    assert [entry.id for entry in store.append("t", say("b"))] == [2]
    assert texts(store) == ["a", "b"]


def test_empty_lines_are_no_damage(store: FileTapeStore) -> None:
    path(store).write_bytes(b"\n" + GOOD + b"\r\n \n")
    assert texts(store) == ["a"]
    assert store.damage.count("t") == 0


@pytest.mark.parametrize("kept_bytes", [1, 90, 200, 270])
def test_a_batch_that_was_cut_short_never_happened(store: FileTapeStore, kept_bytes: int) -> None:
    """Case 78: all or nothing, wherever the crash cut, and also when others have gone on."""
    store.append("t", say("before"))
    size = path(store).stat().st_size
    store.append("t", say("one"), say("two"), say("three"))
    os.truncate(path(store), size + kept_bytes)
    assert texts(store) == ["before"]
    store.append("t", say("a"), say("b"), say("c"))
    store.append("t", say("d"))
    assert texts(store) == ["before", "a", "b", "c", "d"]
    ids = [entry.id for entry in read(store)]
    assert ids == sorted(set(ids))


def test_a_batch_that_ends_between_two_lines_never_happened(store: FileTapeStore) -> None:
    store.append("t", say("one"), say("two"))
    os.truncate(path(store), path(store).read_bytes().index(b"\n") + 1)
    assert texts(store) == []
    store.append("t", say("a"), say("b"))
    assert texts(store) == ["a", "b"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_line_of_a_batch_leaves_the_others(store: FileTapeStore, place: int) -> None:
    """Case 67: it is there, so the batch was whole once."""
    store.append("t", say("x0"), say("x1"), say("x2"))
    path(store).write_bytes(path(store).read_bytes().replace(b"x%d" % place, b"\xff\xff"))
    assert texts(store) == [f"x{other}" for other in range(3) if other != place]


async def test_numbers_with_a_gap_lose_nothing_behind_an_anchor(store: FileTapeStore) -> None:
    """Cases 41 and 86: a slice and the counts go by position, never by what a number says."""
    lines = [(1, "message"), (2, "anchor"), (7, "message"), (9, "message")]
    payload = '{"name": "p", "role": "user", "content": "x"}'
    path(store).write_text(
        "".join(f'{{"id": {number}, "kind": "{kind}", "payload": {payload}}}\n' for number, kind in lines)
    )
    tape = Tape("t", adapted(store))
    assert [entry.id for entry in await tape.query().last_anchor().all()] == [7, 9]
    info = await tape.info()
    assert (info.entries, info.entries_since_last_anchor) == (4, 2)


def test_the_last_number_is_found_behind_much_that_is_none(store: FileTapeStore) -> None:
    store.append("t", say("a" * 300_000))
    with path(store).open("ab") as file:
        file.write(b"x" * 200_000 + b"\n" + b"\x00" * 200_000)
    assert [entry.id for entry in store.append("t", say("b"))] == [2]


def test_a_line_longer_than_any_entry_is_skipped(store: FileTapeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_LINE_BYTES", 1000)
    store.append("t", say("a"), say("b" * 5000), say("c"))
    store.append("t", say("d"))
    assert texts(store) == ["a", "c", "d"]
    assert store.damage.count("t") == 1


def test_a_disk_that_is_full_leaves_the_tape_as_it_was(store: FileTapeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 151."""
    store.append("t", say("a"))
    before = path(store).read_bytes()
    write = os.write

    def full(handle: int, data: bytes) -> int:
        if len(data) > 20:
            return write(handle, data[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Outage, match="No space left"):
        store.append("t", say("a long text that will not fit"), say("b"))
    monkeypatch.undo()
    assert path(store).read_bytes() == before
    store.append("t", say("b"))
    assert texts(store) == ["a", "b"]


def test_a_directory_that_cannot_be_read_is_an_outage(tmp_path: Path) -> None:
    """Case 92: never an empty tape."""
    (tmp_path / "t.jsonl").mkdir()
    store = FileTapeStore(tmp_path)
    with pytest.raises(Outage):
        read(store)


def test_memory_does_not_grow_with_the_tape(store: FileTapeStore) -> None:
    """Case 4: neither an append nor a bounded question holds the tape."""
    peaks = []
    for length in (1_000, 20_000):
        tape = str(length)
        for _ in range(length // 100):
            store.append(tape, *[say("x" * 100)] * 100)
        store.append(tape, TapeEntry.anchor("p"), say("last"))
        query = TapeQuery(tape, adapted(store)).last_anchor()
        tracemalloc.start()
        assert [entry.text for entry in store.fetch_all(query)] == ["last"]
        assert len(store.fetch_all(query.without_anchor().limit(10))) == 10
        store.append(tape, say("more"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 200_000


# Other writers


def append_many(directory: Path, name: str, count: int) -> None:
    store = FileTapeStore(directory, fsync=False)
    for number in range(count):
        store.append("t", say(f"{name} {number}"), say(f"{name} {number}"))


def test_processes_that_append_to_one_tape_share_its_numbers(store: FileTapeStore) -> None:
    """Cases 27 and 73: whole batches, every number once, the order of each writer kept."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=append_many, args=(store.directory, name, 50)) for name in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    entries = read(store)
    assert [entry.id for entry in entries] == list(range(1, 401))
    assert [entry.text for entry in entries[::2]] == [entry.text for entry in entries[1::2]]
    for name in "abcd":
        numbers = [int(entry.text.split()[1]) for entry in entries[::2] if entry.text.startswith(name)]
        assert numbers == list(range(50))


def test_what_bub_appends_meanwhile_is_counted_on(store: FileTapeStore) -> None:
    """Case 27."""
    store.append("t", say("ours"))
    with path(store).open("a", encoding="utf-8") as file:
        file.write(
            json.dumps({"id": 2, "kind": "message", "payload": {"content": "theirs"}, "meta": {}, "date": "x"}) + "\n"
        )
    assert [entry.id for entry in store.append("t", say("ours again"))] == [3]
    assert texts(store) == ["ours", "theirs", "ours again"]


def test_a_reset_is_seen_whole_or_not_at_all(store: FileTapeStore) -> None:
    """Cases 74 and 171: who reads already goes on with the old tape."""
    store.append("t", say("old"), say("old"))
    with store.entries("t") as old:
        store.reset("t", [say("new")])
        store.append("t", say("newer"))
        assert [entry.text for entry in old] == ["old", "old"]
    assert [(entry.id, entry.text) for entry in read(store)] == [(1, "new"), (2, "newer")]
    store.reset("t")
    assert store.list_tapes() == []
    assert [entry.id for entry in store.append("t", say("again"))] == [1]


def test_an_opening_that_cannot_be_stored_resets_nothing(store: FileTapeStore) -> None:
    store.append("t", say("a"))
    with pytest.raises(InvalidInput):
        store.reset("t", [TapeEntry.event("bad", {"value": b""})])
    assert texts(store) == ["a"]


async def test_a_session_is_held_among_processes(store: FileTapeStore) -> None:
    """Case 174: and a merge is one batch, so it is whole or not there."""
    tape = Tape("t", adapted(store))
    elsewhere = FileTapeStore(store.directory)
    async with tape.fork_tape(run_id="r") as fork:
        await fork.append(say("a"), say("b"))
        assert elsewhere.hold_session("t") is None
    release = elsewhere.hold_session("t")
    assert release is not None
    release()
    lines = path(store).read_bytes().splitlines()
    assert [json.loads(line)["batch"] for line in lines] == [[1, 3], [2, 3], [3, 3]]
    os.truncate(path(store), path(store).stat().st_size - 1)
    assert len(read(store)) == 3
    os.truncate(path(store), path(store).stat().st_size - 1)
    assert read(store) == []
