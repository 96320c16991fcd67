"""`bub-redis tape handoff`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bub_redis.cli.connect import connected_tape
from bub_redis.cli.output import Terminal, print_json
from bub_redis.errors import InvalidInput


async def write_handoff(session: str, name: str, state: Mapping[str, Any] | None, *, as_json: bool) -> None:
    """Write anchor and event. Raises NotFound, InvalidInput, TapeBlocked, and what `connected` raises."""
    if not name.strip():
        raise InvalidInput("the anchor's name is empty; write one by which it can be found, such as billing")
    async with connected_tape(session) as (_, tape):
        entries = await tape.handoff(name=name, state=state)
    if as_json:
        for entry in entries:
            print_json(asdict(entry))
    else:
        Terminal().print(f"anchor {name!r} is entry {entries[0].id}; the next context begins behind it")
