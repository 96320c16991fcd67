"""Prompts: what the user says, and the system prompt that is rendered anew for each step."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import republic

from bub_redis.agent.tools import Tool
from bub_redis.errors import InvalidInput
from bub_redis.tape import Tape

UserContent = str | republic.Image | republic.Audio | republic.Video
Prompt = UserContent | Sequence[UserContent]


def prompt_parts(prompt: Prompt) -> tuple[UserContent, ...]:
    """Split `prompt` into its parts. Raises InvalidInput for one that says nothing, or holds other things."""
    parts = (prompt,) if isinstance(prompt, UserContent) else tuple(prompt)
    for part in parts:
        if not isinstance(part, UserContent):
            raise InvalidInput(f"a prompt is text, images, audio and video, not {type(part).__name__}")
    if all(isinstance(part, str) and not part.strip() for part in parts):
        raise InvalidInput("the prompt is empty; nothing was written")
    return parts


def prompt_content(parts: Sequence[UserContent]) -> Any:
    """The prompt as events record it: a text, or a list of typed parts."""
    return republic.user(*parts).to_dict().get("content")


@dataclass(frozen=True)
class PromptContext:
    """What a section of the system prompt sees when it is rendered for one step."""

    tape: Tape
    prompt: Sequence[UserContent]
    """The step's new user message; empty when the step goes on with the conversation."""
    tools: Sequence[Tool]
    """The tools that the step offers."""
    model: str
    """The `provider:model` that the step calls."""

    @property
    def state(self) -> MutableMapping[str, Any]:
        """The run's state, shared with tools and handlers."""
        return self.tape.context.state


PromptSection = str | Callable[[PromptContext], "str | Awaitable[str | None] | None"]
"""Text, or a sync or async function of the step's context; an empty text or None leaves the section out."""


S = TypeVar("S", bound=PromptSection)


class SystemPrompt:
    """The sections of a system prompt, in order, joined by blank lines."""

    def __init__(self, sections: PromptSection | Iterable[PromptSection] = ()) -> None:
        self._sections: list[PromptSection] = (
            [sections] if isinstance(sections, str) or callable(sections) else list(sections)
        )

    def add(self, section: S) -> S:
        """Append a section and return it, so that this is also a decorator."""
        self._sections.append(section)
        return section

    async def render(self, context: PromptContext) -> str:
        """The text of one step; empty without any section. What a section raises ends the run."""
        texts = []
        for section in tuple(self._sections):
            text = section if isinstance(section, str) else section(context)
            texts.append(await text if inspect.isawaitable(text) else text)
        return "\n\n".join(text for text in texts if text)
