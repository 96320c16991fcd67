"""Text search: which words of an entry can be found, and when two texts count as the same.

Only what somebody said or a tool did is searched: the kinds of SEARCHED_KINDS, and of those the values, not the keys,
not the roles and ids, not images, and not the meta (cases 28, 33, 36 and 85). Anchors, events, errors and kinds of
one's own are found by `kinds`.
"""

import json
import unicodedata
from collections.abc import AsyncIterator, Iterator, Mapping
from hashlib import sha256
from typing import Any

from bub_redis.tape.entry import TapeEntry

SEARCHED_KINDS = frozenset({"message", "system", "tool_call", "tool_result"})
_OPAQUE_PARTS = frozenset({"image", "image_url", "audio", "input_audio", "video", "file", "provider_data"})


def folded(text: str) -> str:
    """`text` so that equal words are equal: without case, accents composed (case 84)."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def has_text(entry: TapeEntry, needle: str) -> bool:
    """Whether one of the entry's texts holds `needle`, which is folded already."""
    return any(needle in folded(text) for text in texts(entry))


def texts(entry: TapeEntry) -> Iterator[str]:
    """The texts of an entry that can be found, in no order; none for kinds that are not searched."""
    payload = entry.payload
    if entry.kind not in SEARCHED_KINDS:
        return
    if entry.kind == "tool_result":
        yield from _values(payload.get("results"))
        return
    yield from _content(payload.get("content"))
    yield from _values(payload.get("reasoning"))
    calls = payload.get("calls" if entry.kind == "tool_call" else "tool_calls")
    for call in calls if isinstance(calls, list) else ():
        yield from _call(call)


def _content(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else (content,):
        if not isinstance(part, Mapping):
            yield from _values(part)
        elif part.get("type") not in _OPAQUE_PARTS:
            yield from _values({key: value for key, value in part.items() if key != "type"})


def _call(call: Any) -> Iterator[str]:
    # Tapes of older Bub versions hold Chat Completions calls, with name and arguments one level down.
    described = call.get("function", call) if isinstance(call, Mapping) else {}
    if isinstance(described, Mapping):
        yield from _values(described.get("name"))
        arguments = described.get("arguments")
        try:
            yield from _values(json.loads(arguments) if isinstance(arguments, str) else arguments)
        except (ValueError, RecursionError):
            yield from _values(arguments)


def _values(value: Any) -> Iterator[str]:
    """All texts and numbers in a JSON value, without keys."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str(text):
                yield text
            case bool() | None:
                pass
            case int() | float() as number:
                yield json.dumps(number)
            case list(items):
                waiting.extend(items)
            case Mapping() as mapping:
                waiting.extend(mapping.values())


async def distinct(entries: AsyncIterator[TapeEntry], limit: int) -> list[TapeEntry]:
    """The first `limit` of `entries`, of equal kind and payload only the first (case 35)."""
    hits: list[TapeEntry] = []
    seen: set[bytes] = set()
    if limit <= 0:
        return hits
    async for entry in entries:
        stored = entry.encode()
        digest = sha256(b"%d:%b%b" % (len(stored.kind), stored.kind, stored.payload)).digest()
        if digest in seen:
            continue
        seen.add(digest)
        hits.append(entry)
        if len(hits) == limit:
            break
    return hits
