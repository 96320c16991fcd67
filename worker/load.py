"""Finding the user's agent by name: `module:attribute`."""

import importlib
import inspect
import os
import sys

from bub_redis.agent import Agent
from bub_redis.errors import ConfigError
from bub_redis.settings import Settings


async def load_agent(settings: Settings) -> Agent:
    """The agent that `BUB_AGENT` names, or a plain one on `BUB_MODEL`.

    The attribute is an Agent, or a function, sync or async, that returns one. Raises ConfigError that says what was
    found instead.
    """
    if settings.agent is None:
        if settings.model is None:
            raise ConfigError("nothing to run: name an agent as module:attribute, or a model in BUB_MODEL")
        return Agent(model=settings.model)
    found = _attribute(settings.agent)
    agent = found() if callable(found) and not isinstance(found, Agent) else found
    if inspect.isawaitable(agent):
        agent = await agent
    if not isinstance(agent, Agent):
        raise ConfigError(
            f"{settings.agent} is a {type(agent).__name__}; an Agent, or a function returning one, is needed"
        )
    if agent.model is None and settings.model is not None:
        agent.model = settings.model
    return agent


def _attribute(spec: str) -> object:
    module_name, colon, attribute = spec.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"{spec!r} is no module:attribute; write for example `shop.agents:support`")
    if os.getcwd() not in sys.path:
        # A console script has its own folder on the path, not the one it is run in.
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"no module {error.name!r} in {os.getcwd()} or among the installed ones") from None
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = ", ".join(name for name, value in vars(module).items() if isinstance(value, Agent)) or "none"
            raise ConfigError(f"{module.__name__} has no {attribute!r}; agents found there: {names}")
        found = getattr(found, part)
    return found
