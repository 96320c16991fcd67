"""Archives: how long they are kept, and how they are told apart."""

import asyncio
import os
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bub_redis.tape import InMemoryTapeStore, Tape
from tests.entries import say

DAY = timedelta(days=1)


async def archived(directory: Path, *ages: timedelta, name: str = "t") -> Path:
    """The archive of a tape whose entries are that old."""
    tape = Tape(name, InMemoryTapeStore())
    await tape.append(*(replace(say("x"), date=(datetime.now(UTC) - age).isoformat()) for age in ages))
    return await tape.archive(directory)


async def kept_after(directory: Path, keep: timedelta | None) -> set[Path]:
    """The archives that are there once another one was made of the tape `t`."""
    tape = Tape("t", InMemoryTapeStore())
    await tape.append(say("new"))
    newest = await tape.archive(directory, keep=keep)
    return {directory / name for name in os.listdir(directory)} - {newest}


async def test_archives_are_kept_for_good(tmp_path: Path) -> None:
    """Case 98: however many there are, and however old."""
    made = {await archived(tmp_path, 1000 * DAY) for _ in range(25)}
    assert len(made) == 25
    assert await kept_after(tmp_path, None) == made


async def test_age_counts_from_the_last_entry(tmp_path: Path) -> None:
    """Case 98: a session that began long ago and was talked to today is not old."""
    old = await archived(tmp_path, 40 * DAY, 31 * DAY)
    talked_to = await archived(tmp_path, 40 * DAY, DAY)
    assert await kept_after(tmp_path, 30 * DAY) == {talked_to}
    assert not old.exists()


async def test_an_age_says_nothing_of_other_tapes(tmp_path: Path) -> None:
    """Case 98."""
    others = {await archived(tmp_path, 40 * DAY, name=name) for name in ("u", "t.jsonl.", "t.jsonl.x", "t__sidecar__n")}
    assert await kept_after(tmp_path, DAY) == others


@pytest.mark.parametrize(
    "content", [b"", b"no record\n", b'{"id": 1, "kind": "message", "payload": {}, "date": "x"}\n']
)
async def test_an_archive_whose_age_nobody_knows_is_kept(tmp_path: Path, content: bytes) -> None:
    """Case 98."""
    path = await archived(tmp_path, 40 * DAY)
    path.write_bytes(content)
    assert await kept_after(tmp_path, DAY) == {path}


async def test_archives_of_one_moment_have_names_of_their_own(tmp_path: Path) -> None:
    paths = await asyncio.gather(*(archived(tmp_path, DAY) for _ in range(5)))
    assert len({path.read_bytes() for path in paths}) == len(set(paths)) == 5


@pytest.mark.parametrize(("step", "times"), [("pathlib.Path.mkdir", 1), ("os.fsync", 2)])
async def test_an_archive_that_is_cancelled_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, times: int
) -> None:
    """Before it has a file at all, or when it is whole and only its folder is not synced yet."""
    loop, go_on = asyncio.get_running_loop(), threading.Event()
    left = times

    def cancel() -> None:
        archiving.cancel()
        loop.call_soon(go_on.set)

    def cancelled_at(place: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            loop.call_soon_threadsafe(cancel)
            go_on.wait(10)
        return undisturbed(place, *args, **kwargs)

    tape = Tape("t", InMemoryTapeStore())
    await tape.append(say("x"))
    undisturbed: Any = {"pathlib.Path.mkdir": Path.mkdir, "os.fsync": os.fsync}[step]
    monkeypatch.setattr(step, cancelled_at)
    archiving = asyncio.create_task(tape.archive(tmp_path))
    with pytest.raises(asyncio.CancelledError):
        await archiving
    await loop.shutdown_default_executor()  # no thread does anything any more
    assert os.listdir(tmp_path) == []
