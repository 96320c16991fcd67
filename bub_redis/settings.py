"""Settings: `BUB_*` variables and `$BUB_HOME/config.yml` into one frozen value. The only reader of the environment.

An override wins over a variable, a variable over the file, the file over the default. In the file our keys stand in a
section of their own, `bub_redis:`, beside Bub's, which are left alone; of those only `spill: threshold` is read, which
means the same there.
"""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, get_args

import yaml
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from bub_redis.errors import ConfigError

PREFIX = "BUB_"
SECTION = "bub_redis"
DEFAULT_HOME = Path("~/.bub")
_SHARED_WITH_BUB = {"spill_threshold": ("spill", "threshold")}
"""Fields that stand in one of Bub's sections, and where."""
_OTHERS_VARIABLES = frozenset(
    {
        # Of Bub.
        *("BUB_API_BASE", "BUB_API_KEY", "BUB_CLIENT_ARGS", "BUB_COMMAND_PREFIX", "BUB_COMPLETION_ARGS"),
        *("BUB_FALLBACK_MODELS", "BUB_MAX_STEPS", "BUB_MAX_TOKENS", "BUB_MAX_WAIT_SECONDS", "BUB_PROJECT"),
        *("BUB_MODEL_TIMEOUT_SECONDS", "BUB_PROVIDERS", "BUB_STREAM_OUTPUT", "BUB_VERBOSE"),
        # Of `bub_redis.faults`.
        "BUB_FAULTS",
    }
)
"""Variables that are no settings of ours, and could be taken for mistyped ones."""
_MISTYPED = 0.8
"""From which likeness on a name is taken for a mistyped one."""

_LOST_BEAT = "one lost beat must not lose a turn"
_LATE_RECONCILE = "a killed worker's turn would wait for it"
_EVERY_BEAT_STALLS = "every beat would find the loop blocked"
_ENDS_IN_LEASE = "a turn could not outlast its first lease"
_NO_LONGER_TURN = "no turn runs longer than its limit"
_NOT_MORE_THAN_ALL = "all sessions together take no more"

_A_URL = "a URL, such as redis://localhost:6379/0"
_WANTED = {"namespace": "1 to 32 of A-Z a-z 0-9 _ -", "redis_url": _A_URL, "tape_url": _A_URL}
"""What is to be written where neither the type nor the bounds of a setting say it."""
_KINDS: Mapping[object, str] = {bool: "true or false", int: "a whole number", float: "a number"}
_SHOWN_CHARS = 60


class WrongSettings(ConfigError):
    """Settings that have a value which they cannot have."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(problems.values()))
        self.problems = problems
        """What is wrong, with the remedy, by setting."""


Seconds = Annotated[float, Field(gt=0, le=366 * 86400, allow_inf_nan=False)]


class Settings(BaseSettings):
    """What a process of this project needs to know. Read it with `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    home: Path = DEFAULT_HOME
    """The folder of `config.yml` and of the embedded server's data; Bub's own."""
    redis_url: SecretStr = SecretStr("redis://localhost:6379/0")
    """The queue side: one Redis or Valkey primary."""
    tape_url: SecretStr | None = None
    """The tape side; the server of the queue when unset."""
    namespace: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")] = "bub"
    """What every key of ours begins with: 1 to 32 of `A-Z a-z 0-9 _ -`."""
    workspace: Path | None = None
    """Set it to give sessions of this workspace tapes of their own."""
    model: str | None = None
    """The default model, `provider:model`."""
    agent: str | None = None
    """What a worker runs: `module:attribute`."""
    force: bool = False
    """Use a server also if its eviction policy lets it drop tapes."""
    max_jobs: Annotated[int, Field(ge=1, le=1000)] = 20
    """The most turns that one worker runs at once."""
    lease_s: Seconds = 9.0
    """How long a turn belongs to a worker that does not renew it. At least 3 beats."""
    beat_s: Seconds = 3.0
    """How often leases are renewed."""
    reconcile_s: Seconds = 1.0
    """How often each worker looks for turns that nobody looks after. At most one lease."""
    waiting_grace_s: Seconds = 5.0
    """How long a dispatched turn may wait before it is looked at."""
    turn_limit_s: Seconds = 1800.0
    """The longest that a turn may run. At least one lease."""
    max_crashes: Annotated[int, Field(ge=1, le=100)] = 3
    """How often a turn may take its worker down before it is ended as failed."""
    max_session_turns: Annotated[int, Field(ge=1)] = 100
    """The most turns of one session that have not ended."""
    max_open_turns: Annotated[int, Field(ge=1)] = 100_000
    """The most turns of all sessions that have not ended."""
    max_steers: Annotated[int, Field(ge=1)] = 100
    """The most steering messages for one turn."""
    loop_stall_s: Seconds = 60.0
    """How long a worker's event loop may be blocked before its turns are given up. More than one beat."""
    stall_grace_s: Seconds = 30.0
    """How long a blocked loop, or a turn past its limit, may take to come to its senses before the process is ended."""
    drain_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 25.0
    """How long a worker that is told to stop lets its turns go on before it hands them back. At most the turn limit."""
    wait_replicas: Annotated[int, Field(ge=0)] = 0
    """How many replicas of the tape side must have a commit before it is acknowledged."""
    wait_replicas_s: Seconds = 1.0
    """How long to wait for them; the turn is handed back then, and asks again later."""
    frames_ttl_s: Seconds = 3600.0
    """How long a turn can be followed after its last frame."""
    turn_ttl_s: Seconds = 86400.0
    """How long an ended turn is known to the queue side."""
    spill_threshold: Annotated[int, Field(ge=0)] = 4096
    """Results of tools that are larger go to the spill sidecar: estimated tokens, 4 characters each; 0 never spills."""

    @field_validator("home")
    @classmethod
    def _expanded(cls, home: Path) -> Path:
        return home.expanduser()

    @model_validator(mode="after")
    def _relations(self) -> Self:
        for name, holds, rule, other, reason in (
            ("lease_s", self.lease_s >= 3 * self.beat_s, "must be at least 3 times", "beat_s", _LOST_BEAT),
            ("reconcile_s", self.reconcile_s <= self.lease_s, "must not exceed", "lease_s", _LATE_RECONCILE),
            ("loop_stall_s", self.loop_stall_s > self.beat_s, "must exceed", "beat_s", _EVERY_BEAT_STALLS),
            ("turn_limit_s", self.turn_limit_s >= self.lease_s, "must be at least", "lease_s", _ENDS_IN_LEASE),
            ("drain_s", self.drain_s <= self.turn_limit_s, "must not exceed", "turn_limit_s", _NO_LONGER_TURN),
            (
                "max_session_turns",
                self.max_session_turns <= self.max_open_turns,
                "must not exceed",
                "max_open_turns",
                _NOT_MORE_THAN_ALL,
            ),
        ):
            if not holds:
                said = f"{self._named(name)} {rule} {self._named(other)}: {reason}"
                raise PydanticCustomError("relation", "{said}", {"said": said, "setting": name})
        return self

    def _named(self, name: str) -> str:
        return f"{setting_source(name)} ({getattr(self, name):g})"

    @cached_property
    def queue_address(self) -> str:
        """The URL of the queue side, with its password: for clients only."""
        return self.redis_url.get_secret_value()

    @cached_property
    def tape_address(self) -> str:
        """The URL of the tape side, with its password: for clients only."""
        return (self.tape_url or self.redis_url).get_secret_value()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Overrides, variables, the file: in this order, and nothing else."""
        return init_settings, env_settings, _ConfigFile(settings_cls)


class _ConfigFile(PydanticBaseSettingsSource):
    """What stands in `config.yml` of the home that the sources before this one name."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value of one field; unused, since the file is read as a whole."""
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """The values of the file by field. Raises ConfigError."""
        return _file_values(config_path(self.current_state.get("home")))


def config_path(home: str | Path | None = None) -> Path:
    """The config file of this home, or of `BUB_HOME`."""
    return Path(home or os.environ.get(f"{PREFIX}HOME") or DEFAULT_HOME).expanduser() / "config.yml"


def _file_values(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); mend its rights, or set BUB_HOME") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: {getattr(error, 'problem', 'unreadable')}" if mark else "it is not UTF-8"
        raise ConfigError(f"{path} is no YAML ({where}); mend it") from None
    sections = {} if content is None else content
    if not isinstance(sections, dict):
        raise ConfigError(f"{path} must hold sections, such as `{SECTION}:` with `name: value` below it")
    shared = {name: _shared(sections, *place) for name, place in _SHARED_WITH_BUB.items()}
    values = {**shared, **_section(path, sections.get(SECTION))}
    return {name: value for name, value in values.items() if value is not None}


def _shared(sections: dict[str, Any], section: str, key: str) -> Any:
    found = sections.get(section)
    return found.get(key) if isinstance(found, dict) else None


def _section(path: Path, section: Any) -> dict[str, Any]:
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise ConfigError(f"`{SECTION}:` in {path} must hold `name: value` pairs below it")
    known = [name for name in Settings.model_fields if name != "home" and name not in _SHARED_WITH_BUB]
    for key in section:
        if key not in known:
            raise ConfigError(_unknown(path, str(key), known))
    return section


def _unknown(path: Path, key: str, known: list[str]) -> str:
    if key == "home":
        return f"`{SECTION}.home` cannot be set in {path}, which is found by it; set BUB_HOME"
    if key in _SHARED_WITH_BUB:
        return f"`{SECTION}.{key}` in {path} is unknown; write it as `{'.'.join(_SHARED_WITH_BUB[key])}`, as Bub does"
    close = get_close_matches(key.lower().removeprefix(PREFIX.lower()), known, n=1)
    meant = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(known)}"
    return f"`{SECTION}.{key}` in {path} is unknown; {meant}"


def load_settings(**overrides: object) -> Settings:
    """The settings of this process; `overrides` win over the environment and the file.

    Raises WrongSettings naming the variable, or the key in the file; ConfigError for a file that cannot be read.
    """
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        problems: dict[str, str] = {}
        for detail in error.errors():
            name = str(detail["loc"][0] if detail["loc"] else detail["ctx"]["setting"])
            problems.setdefault(name, _problem(name, detail["input"]) if detail["loc"] else detail["msg"])
        raise WrongSettings(problems) from None


def _problem(name: str, value: object) -> str:
    """What is wrong with the value of a setting. A URL is not shown: it may hold a password."""
    field = Settings.model_fields[name]
    if SecretStr in _types(field):
        return f"{setting_source(name)} is no text; write {_wanted(name)}"
    shown = repr(value)
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[:_SHOWN_CHARS]}…"
    return f"{setting_source(name)} is {shown}; write {_wanted(name)}"


def _wanted(name: str) -> str:
    """What is to be written as the value of a setting."""
    field = Settings.model_fields[name]
    kind = next((_KINDS[kind] for kind in _types(field) if kind in _KINDS), "a text")
    bounds = {
        name: getattr(each, name) for each in field.metadata for name in ("gt", "ge", "le") if hasattr(each, name)
    }
    match bounds:
        case {"ge": least, "le": most}:
            kind += f" from {least} to {most}"
        case {"ge": least}:
            kind += f" of at least {least}"
        case {"gt": below, "le": most}:
            kind += f" above {below}, at most {most}"
    return _WANTED.get(name, kind)


def _types(field: FieldInfo) -> tuple[object, ...]:
    return get_args(field.annotation) or (field.annotation,)


def values_as_given() -> dict[str, object]:
    """The settings of this process as they are written, whether they can be so or not: for showing them.

    Raises ConfigError for a file that cannot be read.
    """
    variables, in_file = _variables(), _file_values(config_path())
    return {
        name: variables.get(variable(name)) or in_file.get(name, field.default)
        for name, field in Settings.model_fields.items()
    }


def mistyped_variables() -> dict[str, str]:
    """Variables of this process that are no settings and look like one; for each, the one that may be meant."""
    ours = [name.upper() for name in Settings.model_fields]
    found = {}
    for given in _variables().keys() - _OTHERS_VARIABLES:
        name = given.removeprefix(PREFIX)
        if name not in ours and (close := get_close_matches(name, ours, 1, _MISTYPED)):
            found[given] = variable(close[0])
    return dict(sorted(found.items()))


def _variables() -> dict[str, str]:
    """The variables that begin as ours do and are not empty; they may be written in small letters."""
    return {name.upper(): value for name, value in os.environ.items() if value and name.upper().startswith(PREFIX)}


def variable(name: str) -> str:
    """The variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def setting_source(name: str) -> str:
    """Where a setting of this process is given: its variable or its place in the file; the variable if nowhere."""
    path = config_path()
    if variable(name) not in _variables() and name in _file_values(path):
        return f"{'.'.join(_SHARED_WITH_BUB.get(name, (SECTION, name)))} in {path}"
    return variable(name)


def given_settings() -> dict[str, str]:
    """The settings of this process that are not defaults, and where each is given.

    Raises ConfigError for a file that cannot be read.
    """
    variables, in_file = _variables(), _file_values(config_path())
    return {
        name: setting_source(name)
        for name in Settings.model_fields
        if variable(name) in variables or in_file.get(name) is not None
    }
