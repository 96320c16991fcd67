"""Stored payloads as Republic messages: what this project and Bub, 0.5 and 0.6, recorded, and whatever else there is.

Nothing here raises: what is unknown or damaged becomes a text that says so, since an entry that cannot be shown would
make its tape unusable for ever (case 112).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import republic

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

Part = republic.Text | republic.Reasoning | republic.Image | republic.Audio | republic.Video | republic.ProviderData

Media = republic.Image | republic.Audio | republic.Video
_MEDIA: dict[str, tuple[Callable[..., Media], str]] = {
    "image": (republic.Image, "image/png"),
    "audio": (republic.Audio, "audio/wav"),
    "video": (republic.Video, "video/mp4"),
}
"""Kind → its part, and the media type where none is told."""
_TEXT_TYPES = ("text", "input_text", "output_text")
"""No set: what is looked for may be any JSON."""
_MEDIA_TYPES = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
}

ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
"""Recorded role → Republic's; results of tools are no messages of their own."""
CALLS = frozenset({"tool_calls", "calls", "function_call"})
"""Where a payload says what it asks for."""
_RETURNED = frozenset({"reasoning", "provider_data"})
"""What providers want back of an answer beside its text."""


def whole(text: str) -> str:
    """`text` as a request can carry it: half of a cut character becomes U+FFFD, as UTF-8 has no form for it (185)."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _LONE_SURROGATE.sub("\ufffd", text)
    return text


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return whole(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def anchor_text(payload: Mapping[str, Any]) -> str:
    """An anchor as a model reads it."""
    state = json.dumps(payload.get("state"), ensure_ascii=False)
    return whole(f"[Anchor created: {payload.get('name')}]: {state}")


def note(kind: Any) -> str:
    """What stands for a part that cannot be shown."""
    return whole(f"[content that cannot be shown: {kind}]")


def stored_message(payload: Mapping[str, Any], calls: Sequence[republic.ToolCall] | None = None) -> republic.Message:
    """The message of a `message` entry, or of a `tool_call` entry with role `assistant`.

    `calls` are those that the message asks for, by default those of its payload.
    """
    if calls is None:
        calls = stored_calls(payload)
    role, content = payload.get("role"), payload.get("content")
    known = ROLES.get(role) if isinstance(role, str) else None
    if known is not None and isinstance(content, str) and _RETURNED.isdisjoint(payload):
        # Nearly all messages there are.
        return republic.Message(known, (republic.Text(whole(content)),) if content else (), tuple(calls))
    parts = content_parts(content)
    if known == "assistant":
        if not _RETURNED.isdisjoint(payload):
            parts += _assistant_parts(payload)
    elif known == "system":
        parts = [part for part in parts if isinstance(part, republic.Text)]
    elif known is None:
        known = "user"
        parts.insert(0, republic.Text(whole(f"[{role}]: ")))
    return republic.Message(known, tuple(parts), tuple(calls))


def _assistant_parts(payload: Mapping[str, Any]) -> Iterable[Part]:
    """What providers want back beside the text."""
    reasoning = payload.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        yield republic.Reasoning(whole(reasoning))
    provider_data = payload.get("provider_data")
    for item in provider_data if isinstance(provider_data, list) else ():
        match item:
            case {"api_format": str(api_format), "payload": dict(data)}:
                yield republic.ProviderData(api_format, _whole_json(data))


def stored_calls(payload: Mapping[str, Any]) -> list[republic.ToolCall]:
    """The calls of a payload: Republic's, Chat Completions' or the single `function_call` of old; ids may be empty."""
    found = payload.get("tool_calls", payload.get("calls"))
    calls = [_call(call) for call in found if isinstance(call, dict)] if isinstance(found, list) else []
    legacy = payload.get("function_call")
    if not calls and isinstance(legacy, dict):
        calls = [_call(legacy)]
    return calls


def _call(call: Mapping[str, Any]) -> republic.ToolCall:
    function = call.get("function")
    told: Mapping[str, Any] = function if isinstance(function, dict) else call
    call_id, name, metadata = call.get("id"), told.get("name"), call.get("metadata")
    return republic.ToolCall(
        whole(call_id) if isinstance(call_id, str) else "",
        whole(name) if isinstance(name, str) and name else "unknown",
        _arguments(told.get("arguments")),
        _whole_json(metadata) if isinstance(metadata, dict) else {},
    )


def _arguments(arguments: Any) -> str:
    """The arguments as JSON of an object: providers refuse a conversation that holds anything else."""
    if not isinstance(arguments, str):
        return json.dumps(arguments if isinstance(arguments, dict) else {}, ensure_ascii=False)
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return json.dumps({"invalid_arguments": whole(arguments)}, ensure_ascii=False)
    if "\\ud" in arguments or "\\uD" in arguments:
        return whole(json.dumps(value, ensure_ascii=False))
    return whole(arguments) or "{}"


def content_parts(content: Any) -> list[Part]:
    """The parts of a content, whatever its shape; empty texts are none."""
    if isinstance(content, str):
        return [republic.Text(whole(content))] if content else []
    if content is None:
        return []
    if not isinstance(content, list):
        return [republic.Text(as_text(content))]
    return [part for block in content if (part := _part(block)) is not None]


def _part(block: Any) -> Part | None:
    if isinstance(block, str):
        return republic.Text(whole(block)) if block else None
    if not isinstance(block, dict):
        return republic.Text(as_text(block))
    kind = block.get("type")
    match block:
        case {"type": "reasoning" | "thinking", "text": str(text)} | {"type": "thinking", "thinking": str(text)}:
            return republic.Reasoning(whole(text))
        case {"type": "refusal", "refusal": str(text)}:
            return republic.Text(whole(text))
        case {"type": "provider_data", "api_format": str(api_format), "payload": dict(data)}:
            return republic.ProviderData(api_format, _whole_json(data))
        case {"text": str(text)} if kind in _TEXT_TYPES:
            return republic.Text(whole(text)) if text else None
        case {"type": str()} if kind in _MEDIA_TYPES:
            return _media(_MEDIA_TYPES[kind], block) or republic.Text(note(kind))
    return republic.Text(note(kind))


def _media(kind: str, block: Mapping[str, Any]) -> Media | None:
    """A media part in Republic's form, in Chat Completions' or in that of Messages; None for one that is damaged."""
    media, default_type = _MEDIA[kind]
    source = next((block[key] for key in ("source", f"{kind}_url", f"input_{kind}") if key in block), block)
    if isinstance(source, str):
        source = {"url": source}
    if not isinstance(source, dict):
        return None
    url, data = source.get("url"), source.get("data")
    told = source.get("media_type") or block.get("media_type")
    if told is None and isinstance(source.get("format"), str):
        told = f"{kind}/{source['format']}"
    media_type = told if isinstance(told, str) else default_type
    try:
        if isinstance(url, str) and url.startswith("data:"):
            return _LOADERS[kind](url)
        if isinstance(data, str):
            return _LOADERS[kind](f"data:{media_type};base64,{data}")
    except ValueError:
        return None
    return media(media_type, url=whole(url)) if isinstance(url, str) and url else None


_LOADERS: dict[str, Callable[[str], Media]] = {
    "image": republic.image,
    "audio": republic.audio,
    "video": republic.video,
}


def result_parts(result: Any) -> tuple[Part, ...]:
    """A tool's result as the model reads it: a text as it is, anything else as JSON.

    One that Bub recorded with media in it, `{"type": "tool_content", "content": [parts]}`, is its parts.
    """
    match result:
        case {"type": "tool_content", "content": list(content)}:
            return tuple(content_parts(content)) or (republic.Text(""),)
        case _:
            return (republic.Text(as_text(result)),)


def _whole_json(value: Any) -> Any:
    match value:
        case str():
            return whole(value)
        case list():
            return [_whole_json(item) for item in value]
        case dict():
            return {whole(key): _whole_json(item) for key, item in value.items()}
        case _:
            return value
