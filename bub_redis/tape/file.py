"""Tapes in files, one for each, in the layout that Bub writes: to read Bub's tapes, and to work without a server."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from bub_redis.errors import InvalidInput, Outage
from bub_redis.tape.damage import Damage
from bub_redis.tape.entry import MAX_ENTRY_BYTES, StoredEntry, TapeEntry
from bub_redis.tape.names import SIDECAR_MARKER, check_tape_name, encode_name
from bub_redis.tape.query import TapeQuery, answer
from bub_redis.tape.records import CUT_SHORT, Unreadable, decode_record, encode_records, whole_batches

MAX_FILE_NAME_BYTES = 240
"""The longest encoded name of a tape: file systems take 255 bytes, with the ending."""
_ENDING = ".jsonl"
_MAX_LINE_BYTES = 3 * MAX_ENTRY_BYTES
_BLOCK_BYTES = 64 * 1024


class FileTapeStore:
    """Tapes as `<encoded name>.jsonl` in a directory; its methods block, so an Agent or Tape runs them in threads.

    Other processes may append to the same files, Bub among them: numbers and batches stay right under `flock` (case
    27). A batch is one write of complete lines, and counts once its last line is there, whatever dies. Lines that are
    cut short or damaged are left out, counted in `damage` and told once (cases 66, 67, 186 and 187). Of a tape no more
    than a batch is ever in memory (case 4). Its file system must tell `a` from `A`. Raises Outage where that refuses.
    """

    def __init__(self, directory: Path | None = None, *, fsync: bool = True) -> None:
        """`directory` is `~/.bub/tapes` by default, and made when first written to.

        With `fsync` an append returns when the disk has it; without, a loss of power may take the last ones.
        """
        self.directory = Path.home() / ".bub" / "tapes" if directory is None else directory
        self.damage = Damage()
        self._fsync = fsync

    def list_tapes(self) -> list[str]:
        """The names of all tapes that hold something, sorted, without sidecars (cases 28 and 76)."""
        with self._outages():
            stems = [file.name.removesuffix(_ENDING) for file in _files(self.directory) if _size(file)]
        names = [unquote(stem) for stem in stems if encode_name(unquote(stem)) == stem]
        return sorted(name for name in names if SIDECAR_MARKER not in name)

    def fetch_all(self, query: TapeQuery) -> list[TapeEntry]:
        """The answer to `query`, in order; its memory does not grow with the tape. Raises NotFound, Outage."""
        with self.entries(query.tape) as entries:
            return answer(query, entries)

    def append(self, tape: str, *entries: TapeEntry) -> list[TapeEntry]:
        """Append entries as one unit and return them as stored. Raises InvalidInput or Outage with nothing written."""
        stored = [entry.encode() for entry in entries]
        path = self._path(tape)
        if not stored:
            return []
        with self._outages(), self._locked(path) as file:
            first = self._write(file, stored)
        return [TapeEntry.decode(first + place, value) for place, value in enumerate(stored)]

    def reset(self, tape: str, opening: Sequence[TapeEntry] = ()) -> None:
        """Replace the tape by `opening` in one step: readers see the old one or the new one (case 171).

        Raises InvalidInput or Outage with nothing changed.
        """
        stored = [entry.encode() for entry in opening]
        path = self._path(tape)
        if not stored and not path.exists():
            return
        with self._outages(), self._locked(path):
            if not stored:
                path.unlink()
                return
            new = path.with_name(f"{path.name}.new")
            new.unlink(missing_ok=True)
            with _opened(new, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
                self._write(file, stored)
            os.replace(new, path)
            self._sync_directory()

    @contextmanager
    def entries(self, tape: str) -> Iterator["FileEntries"]:
        """All entries as they are now, read line by line each time they are gone through. Raises Outage."""
        path = self._path(tape)
        with self._outages(), contextlib.ExitStack() as stack:
            file = None
            with contextlib.suppress(FileNotFoundError):
                file = stack.enter_context(path.open("rb"))
            yield FileEntries(file, lambda damaged: self.damage.note(tape, str(damaged.offset), damaged.reason))

    def hold_session(self, tape: str) -> Callable[[], None] | None:
        """Keep other processes from opening a fork of the tape, until the returned function is called or this
        process ends; None if another one holds it. Raises Outage."""
        path = self.directory / ".sessions" / encode_name(self._checked(tape))
        with self._outages():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return None
        return lambda: os.close(handle)

    def _checked(self, tape: str) -> str:
        size_bytes = len(encode_name(check_tape_name(tape)))
        if size_bytes > MAX_FILE_NAME_BYTES:
            raise InvalidInput(
                f"the tape's name {tape[:40]!r}… takes {size_bytes} bytes as a file name; {MAX_FILE_NAME_BYTES} fit"
            )
        return tape

    def _path(self, tape: str) -> Path:
        return self.directory / f"{encode_name(self._checked(tape))}{_ENDING}"

    @contextmanager
    def _locked(self, path: Path) -> Iterator[BinaryIO]:
        """The tape's file, made if need be, locked against other writers, and still the one at its path."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            with _opened(path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # A reset may have put another file there while this one was waited for.
                if _is_at(file, path):
                    yield file
                    return

    def _write(self, file: BinaryIO, entries: Sequence[StoredEntry]) -> int:
        """Write a batch behind all that is there, and return the number of its first entry."""
        size = os.fstat(file.fileno()).st_size
        lines = _lines_backwards(file.fileno(), size)
        rest = next(lines)
        closing = b"" if not rest else b"\n" if decode_record(rest) else CUT_SHORT
        found = (record.entry.id for line in chain((rest,), lines) if (record := decode_record(line)))
        first = next(found, 0) + 1
        try:
            _write_all(file.fileno(), closing + encode_records(first, entries))
            if self._fsync:
                os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), size)
            raise
        if not size:
            self._sync_directory()
        return first

    def _sync_directory(self) -> None:
        if self._fsync:
            handle = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    @contextmanager
    def _outages(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Outage(f"tapes in {self.directory}: {error.strerror or error}") from error


class FileEntries:
    """The entries of a file up to where it ended when it was opened, read anew each time they are gone through."""

    def __init__(self, file: BinaryIO | None, damaged: Callable[[Unreadable], None]) -> None:
        self._file = file
        self._damaged = damaged
        self._size = 0
        if file is not None:
            # A batch that is being written is not there yet.
            fcntl.flock(file, fcntl.LOCK_SH)
            self._size = os.fstat(file.fileno()).st_size
            fcntl.flock(file, fcntl.LOCK_UN)

    def __iter__(self) -> Iterator[TapeEntry]:
        if self._file is None:
            return
        self._file.seek(0)
        for found in whole_batches(_lines(self._file, self._size)):
            if isinstance(found, Unreadable):
                self._damaged(found)
            else:
                yield found


def _files(directory: Path) -> list[os.DirEntry[str]]:
    """The files of tapes; none where nobody has made the directory yet."""
    with contextlib.suppress(FileNotFoundError):
        return [entry for entry in os.scandir(directory) if entry.name.endswith(_ENDING)]
    return []


def _size(file: os.DirEntry[str]) -> int:
    """How many bytes the file has; 0 for one that somebody removed since it was listed."""
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[BinaryIO]:
    """The file, unbuffered; tapes are for their owner's eyes."""
    with open(os.open(path, flags | os.O_CLOEXEC, 0o600), "r+b", buffering=0) as file:
        yield file


def _is_at(file: BinaryIO, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _lines(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes]]:
    """The lines up to `size`, each with its offset; only LF ends one. What is longer than any entry comes cut off."""
    while (offset := file.tell()) < size:
        line = file.readline(min(size - offset, _MAX_LINE_BYTES))
        if len(line) == _MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (more := file.readline(_MAX_LINE_BYTES)) and not more.endswith(b"\n"):
                pass
            line += more[-1:]
        yield offset, line


def _lines_backwards(handle: int, size: int) -> Iterator[bytes]:
    """The lines of a file from its end, without their LF; first what is behind the last LF, which may be nothing."""
    block = _BLOCK_BYTES
    end, rest = size, b""
    while end:
        begin = max(0, end - block)
        rest = os.pread(handle, end - begin, begin) + rest
        end = begin
        first, *complete = rest.split(b"\n")
        yield from reversed(complete)
        # What is left is one line so far: read more each time, so that a long one is not copied too often.
        rest, block = first, block * 2 if not complete else _BLOCK_BYTES
    yield rest
