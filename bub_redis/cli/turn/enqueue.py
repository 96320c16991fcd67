"""`bub-redis turn enqueue`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bub_redis.cli.connect import connected
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal, print_json
from bub_redis.cli.turn.follow import follow_turn
from worker.load import check_model


@dataclass(frozen=True)
class Sent:
    """What is sent."""

    session: str
    text: str
    turn_id: str | None
    model: str | None
    options: Mapping[str, Any]
    state: Mapping[str, Any]
    metadata: Mapping[str, Any]


async def enqueue_turn(sent: Sent, *, follow: bool, as_json: bool) -> ExitCode:
    """Put the turn on its session's list and say so; with `follow`, show it to its end.

    Raises InvalidInput, Conflict, QueueFull, ConfigError for a model of an unknown provider, and what `connected`
    raises.
    """
    model = None if sent.model is None else check_model(sent.model)
    async with connected() as client:
        turn = await client.enqueue(
            sent.session,
            sent.text,
            turn_id=sent.turn_id,
            model=model,
            options=sent.options,
            state=sent.state,
            metadata=sent.metadata,
        )
        if as_json:
            print_json(asdict(turn))
        else:
            Terminal().print(f"turn {turn.id} of session {turn.session}", style="dim")
        return await follow_turn(client, turn, as_json=as_json) if follow else ExitCode.OK
