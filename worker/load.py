"""Finding the user's agent by name: `module:attribute`.

The module is looked for in the current folder first, then where Python looks. One that has the name of this very
package, `worker`, is loaded from its file under a name of its own, so that both live in one process.
"""

import importlib
import inspect
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

from bub_redis.agent import Agent
from bub_redis.agent.model import ModelClient
from bub_redis.errors import ConfigError, ModelError
from bub_redis.settings import Settings

_OURS = __name__.partition(".")[0]
_THEIRS = f"_users_{_OURS}"
"""What the user's own module of our name is called in this process."""


async def load_agent(settings: Settings) -> Agent:
    """The agent that `BUB_AGENT` names, or a plain one on `BUB_MODEL`.

    The attribute is an Agent, or a function, sync or async, that returns one; it may be left without a model, for turns
    that name theirs. Raises ConfigError that says what was found instead, also for a model whose provider is not known.
    """
    if settings.agent is None:
        if settings.model is None:
            raise ConfigError("nothing to run: name an agent as module:attribute, or a model in BUB_MODEL")
        agent = Agent(model=settings.model)
    else:
        with _silent_coroutines():
            agent = await _named_agent(settings.agent)
    if agent.model is None and settings.model is not None:
        agent.model = settings.model
    for model in (agent.model, *agent.fallbacks):
        if isinstance(model, str):
            check_model(model)
    return agent


def check_model(model: str) -> str:
    """Return `model` if it is `provider:model` of a known provider. Raises ConfigError; nothing is connected."""
    try:
        ModelClient.of(model)
    except ModelError as error:
        raise ConfigError(str(error)) from None
    return model


@contextmanager
def _silent_coroutines() -> Iterator[None]:
    """Let nothing be said of coroutines that the user's code made and left: what is wrong with it is one line."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        yield


async def _named_agent(spec: str) -> Agent:
    found = _attribute(spec)
    agent = found if isinstance(found, Agent) or not callable(found) else await _made(found, spec)
    if not isinstance(agent, Agent):
        kind = type(agent).__name__
        article = "an" if kind[0].lower() in "aeiou" else "a"
        raise ConfigError(f"{spec} is {article} {kind}; an Agent, or a function returning one, is needed")
    return agent


async def _made(function: Callable[[], object], spec: str) -> object:
    """What the user's function returns. Raises ConfigError naming the line on which it fails."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        raise ConfigError(
            f"{spec} cannot be called without arguments; an Agent, or a function returning one, is needed"
        ) from None
    try:
        made = function()
        return await made if inspect.isawaitable(made) else made
    except (Exception, SystemExit) as error:  # the edge to the user's code: anything may come out of a function
        problem = _broken(f"{spec} makes no agent", error)
    # Outside, where nothing keeps the user's frames: what they hold goes before its warnings are heard again.
    raise problem


def _attribute(spec: str) -> object:
    module_name, colon, attribute = spec.partition(":")
    if module_name.endswith(".py") or os.sep in module_name:
        raise ConfigError(f"{module_name!r} is a file; {_instead(module_name, attribute or 'agent')}")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"{spec!r} is no module:attribute; write for example `shop.agents:support`")
    if sys.path[:1] != [os.getcwd()]:
        # A console script has its own folder there, not the one it is run in.
        sys.path.insert(0, os.getcwd())
    module = _imported(module_name)
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"{module_name} has no {attribute!r}; agents found there: {_agents(module)}{_shadowed(module_name)}"
            )
        found = getattr(found, part)
    return found


def _instead(file: str, attribute: str) -> str:
    """How the agent in a file is named: by its module where that can be, else from the folder that it is in."""
    path, here = Path(file.removesuffix(".py")), os.getcwd()
    if path.is_relative_to(here):
        path = path.relative_to(here)
    if path.is_absolute() or ".." in path.parts:
        folder = shlex.quote(str(path.parent))
        return f"go to its folder and name the module: `cd {folder} && bub-redis worker {path.name}:{attribute}`"
    return f"name the module: `{'.'.join(path.parts)}:{attribute}`"


def _shadowed(name: str) -> str:
    """That another module than the user's was imported, if so: their file has the name of one that was there before."""
    top = name.partition(".")[0]
    theirs, imported = PathFinder.find_spec(top, [os.getcwd()]), sys.modules.get(top)
    if theirs is None or theirs.origin is None or imported is None or top == _OURS:
        return ""
    file = getattr(imported, "__file__", None) or "the one built into Python"
    return "" if file == theirs.origin else f"; {file} was imported in place of {theirs.origin}: rename yours"


def _agents(module: ModuleType) -> str:
    return ", ".join(name for name, value in vars(module).items() if isinstance(value, Agent)) or "none"


def _imported(name: str) -> ModuleType:
    """The user's module. Raises ConfigError if there is none, or naming the line on which its import fails."""
    try:
        return _import_users(name)
    except (Exception, SystemExit) as error:  # the edge to the user's code: anything may come out of an import
        problem = _not_imported(name, error)
    raise problem


def _not_imported(name: str, error: BaseException) -> ConfigError:
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "").replace(_THEIRS, _OURS)
        if missing and f"{name}.".startswith(f"{missing}."):
            shadowed = _shadowed(name)
            return ConfigError(f"no module {missing!r} in {os.getcwd()} or among the installed ones{shadowed}")
    return _broken(f"{name} cannot be imported", error)


def _broken(what: str, error: BaseException) -> ConfigError:
    if isinstance(error, SyntaxError):
        place, said = f"{error.filename} line {error.lineno}", error.msg
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
        place, said = f"{frames[-1].filename} line {frames[-1].lineno}", str(error)
    return ConfigError(f"{what}: {type(error).__name__} in {place}: {said}")


def _import_users(name: str) -> ModuleType:
    top, _, rest = name.partition(".")
    if top != _OURS or (spec := _users_spec()) is None:
        return importlib.import_module(name)
    if _THEIRS not in sys.modules:
        module = module_from_spec(spec)
        sys.modules[_THEIRS] = module
        try:
            if spec.loader is not None:
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[_THEIRS]
            raise
    return importlib.import_module(f"{_THEIRS}.{rest}" if rest else _THEIRS)


def _users_spec() -> ModuleSpec | None:
    """Where the user's own module of our name is, under its other name; None if there is none."""
    for path in _places():
        found = PathFinder.find_spec(_OURS, [path])
        if found is None or found.origin is None or Path(found.origin).resolve().parent == Path(__file__).parent:
            continue
        return importlib.util.spec_from_file_location(
            _THEIRS, found.origin, submodule_search_locations=found.submodule_search_locations
        )
    return None


def _places() -> Iterator[str]:
    yield os.getcwd()
    yield from (path for path in sys.path if path)
