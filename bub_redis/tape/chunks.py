"""How a spilled result stands in its sidecar: chunks behind their anchors, then the manifest behind its own.

The layout is Bub's: an anchor `spill/<handle>/chunk/<index>` before each chunk, `spill/<handle>/manifest` before the
manifest, which comes last and is the commit mark: chunks without one are as if they were not there (case 121). A chunk
is found by its handle and index and never by what stands beside it, so spills written at once do not mix (case 120).
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from bub_redis.tape.entry import StoredEntry, TapeEntry, encode_text

CHUNK_BYTES = 16_384
_BATCH_BYTES = 150_000
"""What is cut and written at once: all of it would deafen the server, and keep the event loop. A socket takes so much
without waiting."""
_SPILL_ANCHOR = re.compile(r"spill/([0-9A-Za-z_-]{1,64})/")


@dataclass(frozen=True)
class SpillManifest:
    """What a spilled result consists of."""

    handle: str
    chunks: int
    bytes: int
    """Length of the content in UTF-8."""
    chars: int
    lines: int
    digest: str = ""
    """SHA-256 of the content in UTF-8, hexadecimal; empty in spills of Bub."""

    @classmethod
    def from_entry(cls, entry: TapeEntry, handle: str) -> "SpillManifest | None":
        """The manifest that an entry holds; None for anything else."""
        data = entry.payload.get("data")
        if entry.payload.get("name") != "spill.manifest" or not isinstance(data, dict) or data.get("handle") != handle:
            return None
        match data:
            case {"chunks": int(chunks), "bytes": int(size_bytes), "chars": int(chars), "lines": int(lines)}:
                return cls(handle, chunks, size_bytes, chars, lines, str(data.get("digest", "")))
            case _:
                return None


class Cutting:
    """A text on its way into chunks, and what the manifest will tell of it."""

    def __init__(self, text: str, handle: str) -> None:
        self._text = text
        self._handle = handle
        self._digest = hashlib.sha256()
        self._chunks = self._bytes = self._chars = 0

    def batches(self) -> Iterator[list[TapeEntry]]:
        """The chunks behind their anchors, encoded, as much as is written at once."""
        batch: list[TapeEntry] = []
        batch_bytes = 0
        for chunk, encoded in utf8_chunks(self._text):
            self._digest.update(encoded)
            self._bytes += len(encoded)
            self._chars += len(chunk)
            stored = _stored_chunk(self._handle, self._chunks, chunk)
            self._chunks += 1
            pair_bytes = sum(entry.size_bytes for entry in stored)
            if batch and batch_bytes + pair_bytes > _BATCH_BYTES:
                yield batch
                batch, batch_bytes = [], 0
            batch += [TapeEntry.encoded(0, entry) for entry in stored]
            batch_bytes += pair_bytes
        yield batch

    def manifest(self) -> SpillManifest:
        """What was cut, once all batches are made."""
        lines = self._text.count("\n") + 1
        return SpillManifest(self._handle, self._chunks, self._bytes, self._chars, lines, self._digest.hexdigest())


def utf8_chunks(text: str) -> Iterator[tuple[str, bytes]]:
    """Cut a text into pieces of at most CHUNK_BYTES in UTF-8, between characters (case 118): text and its bytes.

    Halves of a character that stand together become that one, as they would when read back; lone halves stay.
    """
    start, errors = 0, "strict"
    while start < len(text):
        # No more characters than bytes fit, so the whole text is never encoded at once.
        chunk = text[start : start + CHUNK_BYTES]
        try:
            encoded = chunk.encode(errors=errors)
        except UnicodeEncodeError:
            # The first half is here: all before is whole.
            joined = text[start:].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
            text, start, errors = joined, 0, "surrogatepass"
            continue
        if len(encoded) > CHUNK_BYTES:
            end = CHUNK_BYTES
            while encoded[end] & 0xC0 == 0x80:
                end -= 1
            encoded = encoded[:end]
            chunk = encoded.decode(errors=errors)
        yield chunk, encoded
        start += len(chunk)


def chunk_anchor(handle: str, index: int) -> str:
    """The name of the anchor before a chunk."""
    return f"spill/{handle}/chunk/{index}"


def manifest_anchor(handle: str) -> str:
    """The name of the anchor before the manifest."""
    return f"spill/{handle}/manifest"


def handle_of(entry: TapeEntry) -> str | None:
    """The handle that an entry of a spill belongs to."""
    if entry.anchor_name is not None and (found := _SPILL_ANCHOR.match(entry.anchor_name)):
        return found[1]
    handle = entry.meta.get("spill_handle")
    return handle if isinstance(handle, str) else None


def manifest_handle(entry: TapeEntry) -> str | None:
    """The handle whose manifest the entry is, whatever else it says; None for any other entry."""
    match entry.payload:
        case {"name": "spill.manifest", "data": {"handle": str(handle)}} if entry.kind == "event":
            return handle
        case _:
            return None


def _stored_chunk(handle: str, index: int, chunk: str) -> list[StoredEntry]:
    """A chunk behind its anchor: `{"results": [chunk]}`, encoded as the large text that it is."""
    anchor = TapeEntry.anchor(chunk_anchor(handle, index))
    result = TapeEntry(0, "tool_result", {}, {"spill_handle": handle, "spill_chunk": index}, anchor.date).encode()
    return [anchor.encode(), result._replace(payload=b'{"results":[%b]}' % encode_text(chunk))]


def chunk_of(entry: TapeEntry, handle: str, index: int) -> str | None:
    """The text of the entry, if it is that chunk."""
    if (entry.meta.get("spill_handle"), entry.meta.get("spill_chunk")) != (handle, index):
        return None
    match entry.payload.get("results"):
        case [str(chunk)]:
            return chunk
        case _:
            return None
