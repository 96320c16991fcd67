"""Archives: a tape as a file in Bub's layout, written and synced before anything is taken from the tape.

Archives are kept for good unless an age limit is given. Age counts from the last entry, so that a session that is still
talked to is never too old (case 98).
"""

import asyncio
import contextlib
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from bub_redis.errors import Outage
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.names import encode_name
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.records import decode_record, encode_records
from bub_redis.tape.shielded import to_its_end
from bub_redis.tape.store import AsyncTapeStore, Head, OldestFirstStore

_BUFFER_BYTES = 1024 * 1024
_STAMP = re.compile(r"\d{8}T\d{6}Z(-\d+)?")

T = TypeVar("T")


@dataclass(frozen=True)
class Archive:
    """A folder of archived tapes, each `<encoded name>.jsonl.<moment>.bak`, one entry per line."""

    directory: Path
    keep: timedelta | None = None
    """How long an archive is kept after the last entry in it; None for ever."""

    async def write(self, store: AsyncTapeStore, tape: str, head: Head | None = None) -> Path:
        """Write the tape, as it stood at `head` if given, and return the file.

        What fails or is cancelled leaves no file. Memory does not grow with the tape where the store reads in pages.
        Older archives of the same tape that are past their age go. Raises what the store raises, and Outage where the
        file system refuses.
        """
        file = _File(self.directory, f"{encode_name(tape)}.jsonl.")
        try:
            await self._in_thread(file.open)
            buffer = bytearray()
            async for entry in _entries(store, tape, head):
                buffer += encode_records(entry.id, [entry.encode()])
                if len(buffer) >= _BUFFER_BYTES:
                    written = bytes(buffer)
                    buffer.clear()
                    await self._in_thread(lambda: file.write(written))  # noqa: B023 - awaited before it changes
            path = await self._in_thread(lambda: file.finish(bytes(buffer)))
            if self.keep is not None:
                oldest = datetime.now(UTC) - self.keep
                await self._in_thread(lambda: _prune(file, oldest))
        except BaseException:
            await self._in_thread(file.discard)
            raise
        return path

    async def take_back(self, files: Iterable[Path]) -> None:
        """Remove files that `write` made, for a reset that was refused. Raises Outage where the file system does."""

        def remove() -> None:
            for path in files:
                path.unlink(missing_ok=True)

        await self._in_thread(remove)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Do `work` to its end, also where the caller is cancelled: what it has made must be known to be removed."""
        try:
            return await to_its_end(asyncio.to_thread(work))
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise Outage(f"cannot archive to {self.directory}: {reason}; nothing was changed") from None


async def _entries(store: AsyncTapeStore, tape: str, head: Head | None) -> AsyncIterator[TapeEntry]:
    if isinstance(store, OldestFirstStore):
        async for entry in store.oldest_first(tape, head):
            yield entry
    else:
        for entry in await store.fetch_all(TapeQuery(tape, store)):
            yield entry


class _File:
    """An archive that nobody sees before it is whole and on the disk."""

    def __init__(self, directory: Path, stem: str) -> None:
        self.directory = directory
        self.stem = stem
        self._made = contextlib.ExitStack()

    def open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        # Its name goes when it is closed.
        self._part = self._made.enter_context(tempfile.NamedTemporaryFile(prefix=".archive-", dir=self.directory))

    def write(self, lines: bytes) -> None:
        self._part.write(lines)

    def finish(self, lines: bytes) -> Path:
        self._part.write(lines)
        self._part.flush()
        os.fsync(self._part.fileno())
        path = self._linked(datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"))
        self._made.callback(path.unlink, missing_ok=True)
        self._part.close()
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return path

    def _linked(self, stamp: str, number: int = 1) -> Path:
        """The file under a name that no other archive has: a link, unlike a rename, takes nobody's place."""
        path = self.directory / f"{self.stem}{stamp}{'' if number == 1 else f'-{number}'}.bak"
        try:
            os.link(self._part.name, path)
        except FileExistsError:
            return self._linked(stamp, number + 1)
        return path

    def discard(self) -> None:
        """Remove all that was made, the archive too; may be repeated."""
        self._made.close()


def _prune(file: _File, oldest: datetime) -> None:
    for path in file.directory.iterdir():
        name = path.name
        if name.startswith(file.stem) and name.endswith(".bak"):
            stamp = name.removeprefix(file.stem).removesuffix(".bak")
            if _STAMP.fullmatch(stamp) and (last := _last_date(path)) is not None and last < oldest:
                path.unlink(missing_ok=True)


def _last_date(path: Path) -> datetime | None:
    """When the last entry of an archive happened; None where that cannot be read, so that the archive is kept."""
    last = b""
    with path.open("rb") as lines:
        for line in lines:
            last = line
    record = decode_record(last)
    try:
        date = datetime.fromisoformat(record.entry.date) if record else None
    except ValueError:
        return None
    return date if date is None or date.tzinfo else date.replace(tzinfo=UTC)
