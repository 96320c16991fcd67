"""Settings: `BUB_*` variables into one frozen value. The only reader of the environment."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from bub_redis.errors import ConfigError

Seconds = Annotated[float, Field(gt=0)]


class Settings(BaseSettings):
    """What a process of this project needs to know. Read it with `load_settings`."""

    model_config = SettingsConfigDict(env_prefix="BUB_", frozen=True, extra="ignore", env_ignore_empty=True)

    redis_url: SecretStr = SecretStr("redis://localhost:6379/0")
    """The queue side: one Redis or Valkey primary."""
    tape_url: SecretStr | None = None
    """The tape side; the server of the queue when unset."""
    namespace: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")] = "bub"
    """What every key of ours begins with."""
    workspace: Path | None = None
    """Set it to give sessions of this workspace tapes of their own."""
    model: str | None = None
    """The default model, `provider:model`."""
    agent: str | None = None
    """What a worker runs: `module:attribute`."""
    max_jobs: Annotated[int, Field(ge=1, le=1000)] = 20
    """The most turns that one worker runs at once."""
    lease_s: Seconds = 9.0
    """How long a turn belongs to a worker that does not renew it."""
    beat_s: Seconds = 3.0
    """How often leases are renewed."""
    reconcile_s: Seconds = 1.0
    """How often each worker looks for turns that nobody looks after."""
    waiting_grace_s: Seconds = 5.0
    """How long a dispatched turn may wait before it is looked at."""
    turn_limit_s: Seconds = 1800.0
    """The longest that a turn may run."""
    loop_stall_s: Seconds = 60.0
    """How long a worker's event loop may be blocked before its turns are given up."""
    drain_s: Annotated[float, Field(ge=0)] = 0.0
    """How long a worker that is told to stop lets its turns go on before it hands them back."""
    frames_ttl_s: Seconds = 3600.0
    """How long a turn can be followed after its last frame."""
    turn_ttl_s: Seconds = 86400.0
    """How long an ended turn is known to the queue side."""

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.lease_s < 3 * self.beat_s:
            raise ValueError(
                f"BUB_LEASE_S ({self.lease_s:g}) must be at least 3 times BUB_BEAT_S ({self.beat_s:g}): "
                "one lost beat must not lose a turn"
            )
        return self

    @cached_property
    def queue_address(self) -> str:
        """The URL of the queue side, with its password: for clients only."""
        return self.redis_url.get_secret_value()

    @cached_property
    def tape_address(self) -> str:
        """The URL of the tape side, with its password: for clients only."""
        return (self.tape_url or self.redis_url).get_secret_value()


def load_settings(**overrides: object) -> Settings:
    """The settings of this process; `overrides` win over the environment. Raises ConfigError naming the variable."""
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        raise ConfigError("; ".join(_problem(detail["loc"], detail["msg"]) for detail in error.errors())) from None


def _problem(where: tuple[int | str, ...], message: str) -> str:
    reason = message.removeprefix("Value error, ")
    return f"BUB_{str(where[0]).upper()}: {reason}" if where else reason
