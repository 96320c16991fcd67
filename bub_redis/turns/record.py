"""A turn: what a sender puts in, the handle it gets back, and what it ends with."""

import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bub_redis.errors import InvalidInput
from bub_redis.storage.keys import full_turn_id
from bub_redis.tape.entry import encode_json
from bub_redis.tape.receipt import Receipt, Status

MAX_TURN_BYTES = 1024 * 1024
"""The most that prompt, options, state and metadata of one turn may take together, as JSON."""

JOB_NAME = "run_turn"
"""The name of the one arq function: the job's body names it."""


@dataclass(frozen=True)
class Turn:
    """A handle to one turn: enough to follow it from any process."""

    session: str
    tape: str
    id: str

    @property
    def full_id(self) -> str:
        """The id within a namespace: `<tape>/<turn>`, both percent-encoded."""
        return full_turn_id(self.tape, self.id)


@dataclass(frozen=True)
class Request:
    """All that travels with a turn from the sender to the worker."""

    turn: Turn
    prompt: str
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    FIELDS = ("session", "tape", "id", "prompt", "model", "options", "state", "metadata")

    def encoded(self) -> dict[str, bytes]:
        """The fields as the queue side keeps them. Raises InvalidInput for what is empty, too large or not JSON."""
        self._check_types()
        if not self.prompt.strip():
            raise InvalidInput("the prompt is empty; a turn needs something to answer")
        content = {
            "prompt": encode_json(self.prompt, "the prompt"),
            "options": encode_json(dict(self.options), "options"),
            "state": encode_json(dict(self.state), "state"),
            "metadata": encode_json(dict(self.metadata), "metadata"),
        }
        size = sum(map(len, content.values()))
        if size > MAX_TURN_BYTES:
            raise InvalidInput(
                f"prompt, options, state and metadata take {size} bytes; at most {MAX_TURN_BYTES} are taken"
            )
        return {
            "session": self.turn.session.encode(),
            "tape": self.turn.tape.encode(),
            "id": self.turn.id.encode(),
            "model": (self.model or "").encode(),
            **content,
        }

    def _check_types(self) -> None:
        """Refuse what a type checker would have: a web backend hands on what somebody sent."""
        wanted: dict[str, type] = {"prompt": str, "options": Mapping, "state": Mapping, "metadata": Mapping}
        wanted |= {} if self.model is None else {"model": str}
        for name, kind in wanted.items():
            if not isinstance(value := getattr(self, name), kind):
                told = "a text" if kind is str else "a mapping"
                raise InvalidInput(f"{name} must be {told}, not {type(value).__name__}")

    def digest(self) -> str:
        """What tells a repeat from a conflict: a SHA-256 over prompt, model, options, state and metadata."""
        content = [self.prompt, self.model, dict(self.options), dict(self.state), dict(self.metadata)]
        # As it is stored: there all keys are text, and have an order.
        stored = json.loads(encode_json(content, "the turn's content"))
        return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()

    def job_body(self) -> bytes:
        """The arq job of every attempt, in the form that arq's JSON deserializer reads."""
        body: dict[str, Any] = {"t": None, "f": JOB_NAME, "a": [self.turn.full_id], "k": {}}
        body["et"] = time.time_ns() // 1_000_000
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, values: Mapping[str, bytes]) -> "Request":
        """The request in a turn's hash."""
        return cls(
            Turn(values["session"].decode(), values["tape"].decode(), values["id"].decode()),
            json.loads(values["prompt"]),
            values["model"].decode() or None,
            json.loads(values["options"]),
            json.loads(values["state"]),
            json.loads(values["metadata"]),
        )


@dataclass(frozen=True)
class TurnResult:
    """What a turn ended with."""

    turn: str
    status: Status
    text: str | None
    """The answer; None without one."""
    error: str | None
    usage: Mapping[str, Any] | None
    """Tokens of all model calls of the turn; None when the provider told none."""
    receipt: Receipt | None
    """The proof on the tape; None for a turn that never started."""

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            "turn": self.turn,
            "status": self.status,
            "text": self.text,
            "error": self.error,
            "usage": self.usage,
            "receipt": None if self.receipt is None else self.receipt.as_dict(),
        }


def retry_id(turn_id: str) -> str:
    """The id of the turn that tries a dead one again: `<turn>~2`, then `~3`."""
    original, _, number = turn_id.partition("~")
    return f"{original}~{int(number or 1) + 1}"


def new_turn_id() -> str:
    """A random turn id."""
    return secrets.token_hex(16)
