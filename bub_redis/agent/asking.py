"""Asking models for one answer: again where it may help, then the next model, and never after a first token."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import republic
import structlog

from bub_redis.agent.deadline import within
from bub_redis.agent.events import LLMCallRequest
from bub_redis.agent.failures import http_status
from bub_redis.agent.model import Model, ModelClient, Reply
from bub_redis.agent.stream import StreamEvent
from bub_redis.errors import Action, ContextOverflow, ModelError

_log = structlog.get_logger(__name__)


class Models:
    """The models of a run: the one that is called, and those that are called in its place when it fails."""

    def __init__(self, model: Model | None, fallbacks: Sequence[Model] = ()) -> None:
        """Check them. Raises ModelError for a spec that names nothing, InvalidInput for what is no model."""
        self.clients = tuple(ModelClient.of(candidate) for candidate in (model, *fallbacks))

    @property
    def spec(self) -> str:
        """The `provider:model` that is called first."""
        return self.clients[0].spec

    @asynccontextmanager
    async def opened(self, timeout_s: float | None) -> AsyncIterator["OpenModels"]:
        """Use the models for one run. Each is set up when it is first asked, and closed at the end."""
        async with AsyncExitStack() as stack:
            yield OpenModels(self.clients, stack, timeout_s)


class OpenModels:
    """The models of a run while it lasts."""

    def __init__(self, clients: Sequence[ModelClient], stack: AsyncExitStack, timeout_s: float | None) -> None:
        self._clients = clients
        self._stack = stack
        self._timeout_s = timeout_s
        self._opened: dict[ModelClient, republic.ChatModel] = {}

    def ask(self, request: LLMCallRequest, options: Mapping[str, Any]) -> "Asking":
        """One answer to `request`. Raises ModelError if a handler named a model that there is not."""
        clients = self._clients
        if request.model != clients[0].spec:
            clients = [ModelClient.of(request.model)]
        return Asking(self, clients, request, options, self._timeout_s)

    async def open(self, client: ModelClient) -> republic.ChatModel:
        """The model, set up once a run. Raises ModelError if it cannot be."""
        if client not in self._opened:
            self._opened[client] = await self._stack.enter_async_context(client.opened())
        return self._opened[client]


class Asking:
    """One request to a model and, where it fails before a first token, its repeats."""

    def __init__(
        self,
        models: OpenModels,
        clients: Sequence[ModelClient],
        request: LLMCallRequest,
        options: Mapping[str, Any],
        timeout_s: float | None,
    ) -> None:
        self._models = models
        self._clients = clients
        self._request = request
        self._options = options
        self._timeout_s = timeout_s
        self.reply = Reply(clients[0])
        """The last try."""

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        """Stream the answer. Raises the ModelError of the last model if there is none.

        Republic repeats what a provider refuses or does not accept, as often as the model's `max_retries`. An answer
        that breaks off before its first token is asked for again here, as often. An overflow goes to no other model:
        the next turn would only meet it again.
        """
        for client in self._clients:
            try:
                async with aclosing(self._from(client)) as events:
                    async for event in events:
                        yield event
                return
            except ContextOverflow:
                raise
            except ModelError as error:
                if self.reply.begun or client is self._clients[-1]:
                    raise
                # Without the provider's words, which may repeat what a user said.
                _log.warning("model.fallback", model=client.spec, kind=error.kind, http_status=http_status(error))

    async def _from(self, client: ModelClient) -> AsyncGenerator[StreamEvent, None]:
        self.reply = Reply(client)
        model = await self._models.open(client)
        retries = 0
        while True:
            try:
                received = self.reply.receive(model, self._request.messages, self._options)
                async with aclosing(within(received, self._timeout_s, lambda: self._late(client))) as events:
                    async for event in events:
                        yield event
                return
            except ModelError as error:
                passing = error.action is Action.RETRY and self.reply.accepted and not self.reply.begun
                if not passing or retries >= model.provider.max_retries:
                    raise
            await asyncio.sleep(_pause_s(model.provider, retries))
            retries += 1
            self.reply = Reply(client)

    def _late(self, client: ModelClient) -> ModelError:
        return ModelError(
            f"{client.spec} did not finish its answer within {self._timeout_s:g} s; try again later, or raise "
            "model_timeout_s",
            action=Action.RETRY,
        )


def _pause_s(provider: republic.providers.Provider, retries: int) -> float:
    """The provider's own pause before its next retry, with some jitter."""
    longest: float = min(provider.max_retry_delay, provider.retry_delay * 2 ** min(retries, 30))
    return longest * random.uniform(0.75, 1.0)  # noqa: S311 - no secret
