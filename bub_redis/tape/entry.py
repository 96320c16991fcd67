"""A tape's entries: immutable facts, and the one codec that turns them into the four stored fields and back.

Every store, in memory or not, keeps what `TapeEntry.encode` wrote, so a value read back is the same everywhere and
changing a returned entry changes nothing stored.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from bub_redis.errors import InvalidInput

MAX_ENTRY_BYTES = 32 * 1024 * 1024
"""The largest payload or meta an entry may have, encoded. Large tool results belong in a sidecar."""

MAX_KIND_CHARS = 64


class StoredEntry(NamedTuple):
    """The four stored fields of an entry, encoded, in the order in which they stand in the stream."""

    kind: bytes
    payload: bytes
    meta: bytes
    date: bytes

    @property
    def size_bytes(self) -> int:
        """What the four values take, without the store's own overhead."""
        return len(self.kind) + len(self.payload) + len(self.meta) + len(self.date)


def now_iso() -> str:
    """The present moment as entries carry it: ISO 8601, UTC, microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _compact_encoder() -> Callable[[Any], str]:
    """What turns a value into compact JSON. What is circular is found all the same: it is nested too deep."""
    # The C encoder is kept where there is one: json sets it up anew for every value, which for an entry takes longer
    # than the encoding (docs/decisions/0041-less-work-per-entry.md).
    make = getattr(json.encoder, "c_make_encoder", None)
    slow = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
    if make is None:
        return slow.encode
    pieces = make(None, slow.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)
    return lambda value: "".join(pieces(value, 0))


_to_json = _compact_encoder()


def encode_json(value: Any, what: str) -> bytes:
    """Encode `value` as JSON in UTF-8 that reads back to an equal value.

    A text with a lone surrogate (half of a cut emoji; cases 65 and 185) has no UTF-8 form: the whole value is then
    written with ASCII escapes, which read back to the very same text; only two halves that stand together come back
    as their one character. Keys that are numbers become text, as JSON has no others. Raises InvalidInput for NaN and
    Infinity, for bytes, sets and other objects, and for nesting too deep.
    """
    try:
        text = _to_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{what} is not JSON: {error or 'nested too deeply'}; nothing was written") from None
    try:
        return text.encode()
    except UnicodeEncodeError:
        escaped = json.dumps(value, allow_nan=False, separators=(",", ":"))
    try:
        # Halves that stand together are one character when read, so they are stored as one: digests are redone from
        # what was read.
        return json.dumps(json.loads(escaped), ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return escaped.encode()


def encode_text(text: str) -> bytes:
    """Encode a text as JSON, as `encode_json` does, several times faster: for what is large."""
    try:
        return to_json(text)
    except ValueError:
        # A lone surrogate.
        return encode_json(text, "a text")


def _plain(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return mapping if type(mapping) is dict else dict(mapping)


def _decode_object(raw: bytes) -> dict[str, Any]:
    try:
        value = from_json(raw, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        # Lone surrogates and nesting beyond 200 levels, which only the slower reader takes; or no JSON at all.
        value = json.loads(raw)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


@dataclass(frozen=True)
class TapeEntry:
    """One fact on a tape. `id` is its number in that tape, from 1; 0 means that no store gave it one yet."""

    id: int
    kind: str
    payload: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)
    date: str = field(default_factory=now_iso)

    @classmethod
    def message(cls, message: Mapping[str, Any], **meta: Any) -> "TapeEntry":
        """A message as Republic's `Message.to_dict` gives it: `{"role", "content", ...}`."""
        return cls(0, "message", dict(message), meta)

    @classmethod
    def system(cls, content: str, **meta: Any) -> "TapeEntry":
        """A system text: `{"content"}`."""
        return cls(0, "system", {"content": content}, meta)

    @classmethod
    def tool_call(
        cls,
        calls: Sequence[Mapping[str, Any]],
        *,
        content: Any = None,
        extra: Mapping[str, Any] | None = None,
        **meta: Any,
    ) -> "TapeEntry":
        """What a model asked for in one response: `{"calls": [{"id", "name", "arguments"}], "content", ...}`."""
        return cls(
            0,
            "tool_call",
            {"calls": [dict(call) for call in calls], "content": content, **(extra or {})},
            meta,
        )

    @classmethod
    def tool_result(cls, results: Sequence[Any], call_ids: Sequence[str], **meta: Any) -> "TapeEntry":
        """The results of calls, in the order of the calls, each beside the id of its call (case 105)."""
        return cls(0, "tool_result", {"results": list(results), "call_ids": list(call_ids)}, meta)

    @classmethod
    def anchor(cls, name: str, state: Mapping[str, Any] | None = None, **meta: Any) -> "TapeEntry":
        """A point from which context can be rebuilt without what stands before it: `{"name", "state"?}`."""
        return cls(0, "anchor", {"name": name} | ({} if state is None else {"state": dict(state)}), meta)

    @classmethod
    def event(cls, name: str, data: Mapping[str, Any] | None = None, **meta: Any) -> "TapeEntry":
        """Something that happened: `{"name", "data"?}`."""
        return cls(0, "event", {"name": name} | ({} if data is None else {"data": dict(data)}), meta)

    @classmethod
    def error(cls, kind: str, message: str, details: Mapping[str, Any] | None = None, **meta: Any) -> "TapeEntry":
        """Something that went wrong: `{"kind", "message", "details"?}`."""
        payload = {"kind": kind, "message": message} | ({"details": dict(details)} if details else {})
        return cls(0, "error", payload, meta)

    @property
    def anchor_name(self) -> str | None:
        """The name if this is an anchor that has one, else None: the same rule in every store (case 87)."""
        name = self.payload.get("name") if self.kind == "anchor" else None
        return name if isinstance(name, str) else None

    @property
    def text(self) -> str:
        """The text of a message, without its other parts; empty for other kinds."""
        content = self.payload.get("content") if self.kind == "message" else None
        if isinstance(content, str):
            return content
        parts = content if isinstance(content, list) else []
        return "".join(part.get("text", "") for part in parts if isinstance(part, dict) and part.get("type") == "text")

    def encode(self) -> StoredEntry:
        """The four stored fields. Raises InvalidInput for what cannot be stored, before anything is written."""
        known: StoredEntry | None = self.__dict__.get("_stored")
        if known is not None and "payload" not in self.__dict__ and "meta" not in self.__dict__:
            # Nobody has looked at what they hold, so nobody has changed it.
            return known
        if not self.kind or len(self.kind) > MAX_KIND_CHARS or not self.kind.isprintable():
            raise InvalidInput(f"an entry's kind is 1 to {MAX_KIND_CHARS} printable characters, not {self.kind[:80]!r}")
        stored = StoredEntry(
            self.kind.encode(),
            encode_json(_plain(self.payload), f"the payload of a {self.kind} entry"),
            encode_json(_plain(self.meta), f"the meta of a {self.kind} entry"),
            self.date.encode(),
        )
        if stored.size_bytes > MAX_ENTRY_BYTES:
            raise InvalidInput(
                f"a {self.kind} entry of {stored.size_bytes} bytes is over the limit of {MAX_ENTRY_BYTES}; "
                "large tool results belong in a sidecar"
            )
        return stored

    @classmethod
    def encoded(cls, number: int, stored: StoredEntry) -> "TapeEntry":
        """The entry as it will be read back, of fields that `encode` has just made.

        Payload and meta are decoded when they are first looked at: most of what is written is not read in the process.
        """
        entry = object.__new__(cls)
        entry.__dict__.update(id=number, kind=stored.kind.decode(), date=stored.date.decode(), _stored=stored)
        return entry

    def __getattr__(self, name: str) -> Any:
        # Only asked for what is not there: payload and meta of an entry that `encoded` made.
        stored = self.__dict__.get("_stored")
        if stored is None or name not in {"payload", "meta"}:
            raise AttributeError(f"a TapeEntry has no {name!r}")
        self.__dict__[name] = value = _decode_object(getattr(stored, name))
        return value

    @classmethod
    def decode(cls, number: int, stored: Sequence[bytes]) -> "TapeEntry":
        """The entry of the four fields that `encode` wrote. Raises ValueError for what no encode could have written."""
        kind, payload, meta, date = stored
        entry = object.__new__(cls)
        # Past the frozen fields' own way, which takes longer than the decoding of a small entry.
        fields = entry.__dict__
        fields["id"] = number
        fields["kind"] = kind.decode()
        fields["payload"] = _decode_object(payload)
        fields["meta"] = _decode_object(meta)
        fields["date"] = date.decode()
        return entry
