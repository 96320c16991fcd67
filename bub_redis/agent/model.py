"""Models as a run uses them: from a spec or a Republic object, with every failure as one ModelError."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import republic
from republic.events import Completed, Event, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta, UsageDelta

from bub_redis.agent.failures import key_variable, model_errors
from bub_redis.agent.stream import StreamEvent
from bub_redis.errors import Action, InvalidInput, ModelError
from bub_redis.tape.replay import sendable

Model = str | republic.ChatModel
"""A spec `provider:model`, or a Republic model, which is used as it is and never closed."""


@dataclass(frozen=True)
class ModelClient:
    """A model before it is opened: checked, and nothing connected."""

    spec: str
    """`provider:model`, as events and the tape name it."""
    chat_model: republic.ChatModel | None = None

    @classmethod
    def of(cls, model: Model | None) -> "ModelClient":
        """Check `model`. Raises ModelError for a spec that names nothing, InvalidInput for what is none."""
        if isinstance(model, republic.ChatModel):
            if model.history is not None:
                raise InvalidInput("the model keeps a history of its own: leave it out, the tape is the history")
            return cls(f"{model.provider.name}:{model.name}", model)
        if not isinstance(model, str):
            raise InvalidInput(
                "there is no model to call; name one as provider:model: for the agent, for the run or turn, or in "
                "BUB_MODEL for a worker's plain agent"
            )
        provider, _, name = model.partition(":")
        if not provider or not name:
            raise ModelError(f"{model!r} is no model; write it as provider:model")
        if provider not in republic.all_providers():
            known = ", ".join(republic.all_providers())
            raise ModelError(f"there is no provider {provider!r} for {model!r}; known are: {known}")
        return cls(model)

    @property
    def provider(self) -> str:
        """The provider's name."""
        return self.spec.partition(":")[0]

    def missing_key(self) -> str | None:
        """The variable for the provider's key, where none is set and the provider will want one; connects to nothing.

        One that is reached without TLS is a server of one's own, which may want none.
        """
        try:
            with model_errors(self.spec, "cannot be set up"):
                provider = (self.chat_model or republic.get_model(self.spec)).provider
        except ModelError:
            # Told by the first turn, with all that is wrong.
            return None
        keyless = provider.auth is None and provider.api_base.startswith("https://")
        return key_variable(self.spec) if keyless else None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[republic.ChatModel]:
        """Use the model for one run. Raises ModelError if it cannot be set up.

        One made from a spec is made anew and closed with the run: its HTTP client belongs to one event loop,
        and a cache would have to outlive runs without anybody to close it. Who wants connections kept between
        runs passes a Republic model, whose owner closes it.
        """
        if self.chat_model is not None:
            yield self.chat_model
            return
        with model_errors(self.spec, "cannot be set up"):
            model = republic.get_model(self.spec)
        async with model:
            yield model


class Reply:
    """One try to get an answer: what of it is known so far, and the whole message once it ended well."""

    def __init__(self, client: ModelClient) -> None:
        self.client = client
        self.message: republic.Message | None = None
        self.usage: dict[str, int] | None = None
        """Tokens, as far as the provider told; None if it told nothing."""
        self.finish_reason: str | None = None
        self.accepted = False
        """Whether the provider began to answer; before that, Republic itself repeats what may pass."""
        self.begun = False
        """Whether a first token came: from then on there is no second try."""

    async def receive(
        self, model: republic.ChatModel, messages: Sequence[Any], options: Mapping[str, Any]
    ) -> AsyncGenerator[StreamEvent, None]:
        """Call the model and stream what it says.

        Raises ModelError if the call fails, also in the middle: a part of an answer is none.
        """
        async with aclosing(self._native_events(model, messages, options)) as events:
            async for event in events:
                match event:
                    case TextDelta(chunk) | RefusalDelta(chunk):
                        self.begun = True
                        yield StreamEvent("text", {"delta": chunk})
                    case ReasoningDelta(chunk):
                        self.begun = True
                        yield StreamEvent("reasoning", {"delta": chunk})
                    case ToolCallDelta():
                        self.begun = True
                    case UsageDelta(usage):
                        self._add_usage(usage)
                    case Completed(response):
                        self.message = _whole_message(response)
                        self.finish_reason = response.finish_reason

    async def _native_events(
        self, model: republic.ChatModel, messages: Sequence[Any], options: Mapping[str, Any]
    ) -> AsyncGenerator[Event, None]:
        spec = self.client.spec
        with model_errors(spec, "cannot be asked this", provider=model.provider):
            async with model.stream(sendable(messages), **cast(republic.ChatOptions, options)) as stream:
                self.accepted = True
                # Republic iterates by a generator: closed here, and not whenever the collector finds it.
                iterator = cast(AsyncGenerator[Event, None], aiter(stream))
                with model_errors(spec, "sent an answer that makes no sense", action=Action.RETRY):
                    async with aclosing(iterator) as events:
                        async for event in events:
                            yield event

    def _add_usage(self, usage: republic.TokenUsage) -> None:
        told = asdict(usage) | {"total_tokens": usage.total_tokens}
        known = self.usage or {}
        self.usage = {key: known.get(key, 0) + count for key, count in told.items()}


def _whole_message(response: republic.Response[Any]) -> republic.Message:
    """The response to keep: a refusal as its text, and calls with ids that tell them apart."""
    message = response.message
    if response.refusal and not message.text:
        message = replace(message, parts=(*message.parts, republic.Text(response.refusal)))
    return replace(message, tool_calls=_distinct(message.tool_calls))


def _distinct(calls: Sequence[republic.ToolCall]) -> tuple[republic.ToolCall, ...]:
    """Calls of one response, none without an id and no two with the same: some servers send none at all."""
    taken: set[str] = set()
    distinct = []
    for place, call in enumerate(calls):
        call_id = call.id or f"call_{place}"
        while call_id in taken:
            call_id = f"{call_id}_{place}"
        taken.add(call_id)
        distinct.append(replace(call, id=call_id))
    return tuple(distinct)
