"""Spill: large tool results go to a sidecar in chunks; the main tape gets a preview and a handle.

`chunks.py` says how they stand there.
"""

import asyncio
import hashlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from bub_redis.errors import BubError, Fenced, InvalidInput, NotFound
from bub_redis.tape.chunks import (
    Cutting,
    SpillManifest,
    chunk_anchor,
    chunk_of,
    handle_of,
    manifest_anchor,
    manifest_handle,
)
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.fork import Fork
from bub_redis.tape.info import CHARS_PER_TOKEN
from bub_redis.tape.query import TapeQuery
from bub_redis.tape.sidecar import TapeSidecar
from bub_redis.tape.store import AsyncTapeStore
from bub_redis.tape.tape import Tape

SPILL_SIDECAR = "spill"
DEFAULT_THRESHOLD_TOKENS = 4096
PREVIEW_CHARS = 600
"""How much the model reads of what is too large."""
MAX_READ_CHUNKS = 4
_READ_CHUNKS = 32
"""How many chunks are read at once, at most."""
_HANDLE = re.compile(r"[0-9A-Za-z_-]{1,64}")

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SpillPage:
    """Some chunks of a spilled result, in order."""

    manifest: SpillManifest
    content: str
    start: int
    """The first chunk, from 0."""
    stop: int
    """The chunk behind the last one."""
    next_cursor: int
    """Where to read on, counted from the end that was read from."""
    complete: bool
    """Whether nothing is left in that direction."""


@dataclass(frozen=True)
class SpillStore(TapeSidecar):
    """The sidecar for large tool results. Mounted, it keeps and reads them; what spills is decided by `spill`.

    `threshold_tokens`, estimated at 4 characters each, is the size from which a result is spilled; 0 spills nothing
    more, and what was spilled stays readable (case 125). Raises InvalidInput below 0.
    """

    name: str = field(default=SPILL_SIDECAR, init=False)
    threshold_tokens: int = DEFAULT_THRESHOLD_TOKENS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold_tokens < 0:
            raise InvalidInput(f"a spill threshold is 0 or more tokens, not {self.threshold_tokens}")

    async def spill(self, tape: Tape, result: Any, *, tool: str, run_id: str) -> Any:
        """Keep a result that is too large in the sidecar and return what stands for it: a preview with the handle.

        A result that is small enough comes back as it is. Every JSON counts, as the text in which a model reads it
        (case 124); half characters are kept and read back (case 119). Where the sidecar cannot take it, the preview
        alone is left, and the event `spill.write` says so. Raises Fenced, and what appending to the tape raises.
        """
        text = _rendered(result)
        if not self.threshold_tokens or len(text) < self.threshold_tokens * CHARS_PER_TOKEN:
            return result
        handle = secrets.token_hex(16)
        try:
            manifest = await self._write(tape, text, handle, tool=tool, run_id=run_id)
        except Fenced:
            raise
        except BubError as error:
            log.warning("spill.failed", tool=tool, error=str(error))
            failure = {"status": "error", "handle": handle, "tool": tool, "error": str(error)}
            await tape.append_event("spill.write", failure, run_id=run_id, context=False)
            return (
                f"[This result of {len(text):,} characters could not be stored. What is left of it:]\n{preview(text)}"
            )
        data = {
            "status": "ok",
            "handle": handle,
            "bytes": manifest.bytes,
            "chunks": manifest.chunks,
            "tool": tool,
            "digest": manifest.digest,
        }
        await tape.append_event("spill.write", data, run_id=run_id, context=False)
        return (
            f"[This result has {manifest.bytes:,} bytes and is stored in {manifest.chunks:,} chunks. Read it with "
            f"spill_read(handle={handle!r}, cursor=0, count={MAX_READ_CHUNKS}), or from_end=true. A preview:]\n"
            f"{preview(text)}"
        )

    def capped(self, problem: dict[str, Any]) -> dict[str, Any]:
        """An error result as a model may read it: what is too long is cut, as errors are not spilled (case 123)."""
        limit_chars = (self.threshold_tokens or DEFAULT_THRESHOLD_TOKENS) * CHARS_PER_TOKEN
        if len(_rendered(problem)) < limit_chars:
            return problem
        return {key: preview(_rendered(value)) for key, value in problem.items()}

    async def _write(self, tape: Tape, text: str, handle: str, *, tool: str, run_id: str) -> SpillManifest:
        """Write the chunks ahead, batch after batch, then the manifest that makes them count."""
        spill_tape = tape.sidecar_tape_name(self.name)
        cutting = Cutting(text, handle)
        batches = cutting.batches()
        batch = next(batches, None)
        while batch is not None:
            # What is on its way is taken by the server while the next one is cut.
            _, batch = await asyncio.gather(_append_ahead(tape.store, spill_tape, batch), _next(batches))
        manifest = cutting.manifest()
        data = {**vars(manifest), "tool": tool}
        await tape.store.append(
            spill_tape,
            TapeEntry.anchor(manifest_anchor(handle)),
            TapeEntry.event("spill.manifest", data, spill_handle=handle, run_id=run_id),
        )
        return manifest

    async def manifest(self, tape: Tape, handle: str) -> SpillManifest | None:
        """What is stored under a handle; None for one that is unknown or was never completed. Raises Outage."""
        if not _HANDLE.fullmatch(handle):
            return None
        query = TapeQuery(tape.sidecar_tape_name(self.name), tape.store).after_anchor(manifest_anchor(handle)).limit(1)
        try:
            found = await query.all()
        except NotFound:
            return None
        return SpillManifest.from_entry(found[0], handle) if found else None

    async def read(
        self, tape: Tape, handle: str, *, cursor: int = 0, count: int = 1, from_end: bool = False
    ) -> SpillPage | None:
        """Read up to `count` chunks, at most MAX_READ_CHUNKS, from chunk `cursor` on, counted from either end.

        None for a handle that is unknown or incomplete: no part of a result is ever shown for the whole (case 121).
        Raises InvalidInput for a cursor below 0 or a count below 1, Outage.
        """
        if cursor < 0 or count < 1:
            raise InvalidInput(f"a cursor is 0 or more and a count 1 or more, not {cursor} and {count}")
        manifest = await self.manifest(tape, handle)
        if manifest is None:
            return None
        count = min(count, MAX_READ_CHUNKS)
        if from_end:
            stop = max(0, manifest.chunks - cursor)
            start = max(0, stop - count)
        else:
            start = min(cursor, manifest.chunks)
            stop = min(start + count, manifest.chunks)
        whole: list[str] = []
        while start + len(whole) < stop:
            found = await self._chunks(tape, handle, start + len(whole), stop)
            if not found:
                return None
            whole += found
        complete = start == 0 if from_end else stop == manifest.chunks
        next_cursor = manifest.chunks - start if from_end else stop
        return SpillPage(manifest, "".join(whole), start, stop, next_cursor, complete)

    async def content(self, tape: Tape, handle: str) -> AsyncIterator[str]:
        """The chunks of a result, all of them, in order. Raises NotFound for one that is unknown or incomplete."""
        manifest = await self.manifest(tape, handle)
        index = 0
        while manifest is None or index < manifest.chunks:
            found = await self._chunks(tape, handle, index, manifest.chunks) if manifest else []
            if not found:
                raise NotFound(f"no result is stored under {handle!r}")
            for chunk in found:
                yield chunk
            index += len(found)

    async def intact(self, tape: Tape, handle: str) -> bool:
        """Whether a result is there, whole, and still what its manifest's digest says. Raises Outage."""
        manifest = await self.manifest(tape, handle)
        digest = hashlib.sha256()
        try:
            async for chunk in self.content(tape, handle):
                digest.update(chunk.encode("utf-8", "surrogatepass"))
        except NotFound:
            return False
        return manifest is not None and digest.hexdigest() == manifest.digest

    async def sweep(self, tape: Tape, *, older_than: timedelta = timedelta(days=7)) -> int:
        """Remove chunks that were never followed by a manifest, as a killed worker leaves them; how many they were.

        Only what is `older_than` goes: a turn between two attempts still counts on its chunks. Holds the session, reads
        the sidecar whole and merges it anew in one block, with the event `spill.sweep` on the main tape; for a person
        who repairs, not for a worker. May be repeated. Raises SessionBusy at once, and what a merge raises.
        """
        spill_tape = tape.sidecar_tape_name(self.name)
        oldest = (datetime.now(UTC) - older_than).isoformat()
        async with tape.fork_tape(wait_s=0.0) as fork:
            entries = await TapeQuery(spill_tape, fork.store).all()
            whole = {handle for entry in entries if (handle := manifest_handle(entry)) is not None}
            kept = [entry for entry in entries if entry.date >= oldest or handle_of(entry) in {None, *whole}]
            chunks = sum(entry.kind == "tool_result" for entry in entries)
            removed = chunks - sum(entry.kind == "tool_result" for entry in kept)
            if removed:
                await fork.store.reset(spill_tape)
                await fork.store.append(spill_tape, *kept)
                await fork.append_event("spill.sweep", {"chunks": removed}, context=False)
        return removed

    async def _chunks(self, tape: Tape, handle: str, start: int, stop: int) -> list[str]:
        """Chunks from `start` on and before `stop`, as many as are found at once; none if the first is missing."""
        behind = TapeQuery(tape.sidecar_tape_name(self.name), tape.store).after_anchor(chunk_anchor(handle, start))
        found: list[str] = []
        try:
            # As a rule the next ones stand right behind, each behind its anchor.
            entries = await behind.limit(2 * min(stop - start, _READ_CHUNKS)).all()
        except NotFound:
            return []
        for entry in entries:
            if start + len(found) == stop:
                break
            if (chunk := chunk_of(entry, handle, start + len(found))) is not None:
                found.append(chunk)
        if not found and (chunk := await self._chunk(tape, handle, start)) is not None:
            found.append(chunk)
        return found

    async def _chunk(self, tape: Tape, handle: str, index: int) -> str | None:
        behind = TapeQuery(tape.sidecar_tape_name(self.name), tape.store).after_anchor(chunk_anchor(handle, index))
        try:
            # Ours stands right behind its anchor; one of Bub's may have others between.
            for entry in await behind.kinds("tool_result").limit(MAX_READ_CHUNKS * 4).all():
                if (chunk := chunk_of(entry, handle, index)) is not None:
                    return chunk
        except NotFound:
            pass
        return None


def preview(text: str, chars: int = PREVIEW_CHARS) -> str:
    """The beginning and the end of a text, `chars` characters together; all of one that is not longer."""
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


def _rendered(result: Any) -> str:
    """A result as the text in which a model reads it."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


async def _next(batches: Iterator[list[TapeEntry]]) -> list[TapeEntry] | None:
    return next(batches, None)


async def _append_ahead(store: AsyncTapeStore, spill_tape: str, batch: list[TapeEntry]) -> None:
    if isinstance(store, Fork):
        await store.append_ahead(spill_tape, *batch)
    else:
        await store.append(spill_tape, *batch)
