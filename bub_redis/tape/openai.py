"""Stored payloads as Chat Completions dicts, for callers that send them to a service themselves."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import republic

from bub_redis.tape.messages import Part, as_text, content_parts, note, result_parts, whole
from bub_redis.tape.replay import INTERRUPTED

# Tuples, since what is looked for may be any JSON, also what no set can be asked for.
_KNOWN_ROLES = ("system", "developer", "user", "assistant")
_KNOWN_PARTS = ("image_url", "input_audio", "video_url", "file", "refusal")
_OWN_KEYS = frozenset(
    {"tool_calls", "calls", "tool_call", "function_call", "is_error", "reasoning", "provider_data", "content", "role"}
)
"""What Republic and Bub record and the format does not know, or knows in another shape."""


class OpenAIMessages:
    """Payloads as Chat Completions dicts: a message is its payload, in that format where it was recorded in another."""

    def message(self, item: Mapping[str, Any], calls: Sequence[republic.ToolCall]) -> dict[str, Any] | None:
        """The message; None if it holds nothing, which providers refuse (case 113)."""
        role = item.get("role")
        content = _content(item.get("content"))
        if not content and not calls:
            return None
        if role not in _KNOWN_ROLES:
            content = [{"type": "text", "text": whole(f"[{role}]: ")}, *_as_parts(content)]
            role = "user"
        message = {"role": role, "content": content}
        message |= {key: value for key, value in item.items() if key not in _OWN_KEYS}
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        return message

    def result(self, call: republic.ToolCall, result: Any) -> dict[str, Any]:
        """The tool message: text, since the format takes nothing else from tools."""
        parts = getattr(result, "parts", None) or result_parts(result)
        texts = (part.text if isinstance(part, republic.Text) else note(type(part).__name__.lower()) for part in parts)
        return {"role": "tool", "tool_call_id": call.id, "content": "".join(texts)}

    def interrupted(self, call: republic.ToolCall) -> dict[str, Any]:
        """The tool message that says so."""
        return {"role": "tool", "tool_call_id": call.id, "content": INTERRUPTED}


def _call(call: republic.ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _content(content: Any) -> Any:
    if content is None:
        return None
    if isinstance(content, str):
        return whole(content)
    if not isinstance(content, list):
        return as_text(content)
    return [part for block in content for part in _parts(block)]


def _as_parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def _parts(block: Any) -> list[dict[str, Any]]:
    if isinstance(block, dict) and block.get("type") in _KNOWN_PARTS:
        return [block]
    return [shown for part in content_parts([block]) if (shown := _part(part)) is not None]


def _part(part: Part) -> dict[str, Any] | None:
    match part:
        case republic.Text(text):
            return {"type": "text", "text": text}
        case republic.Image():
            return {"type": "image_url", "image_url": {"url": part.data_url}}
        case republic.Video():
            return {"type": "video_url", "video_url": {"url": part.data_url}}
        case republic.Audio(data=bytes(data)):
            audio = {"data": base64.b64encode(data).decode(), "format": part.media_type.rpartition("/")[2]}
            return {"type": "input_audio", "input_audio": audio}
        case republic.Audio():
            return {"type": "text", "text": note("audio")}
        case _:
            # Reasoning and provider data: the format has no place for them.
            return None
