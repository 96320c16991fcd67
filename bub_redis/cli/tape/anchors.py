"""`bub-redis tape anchors`."""

from dataclasses import asdict

from bub_redis.cli.connect import connected_tape
from bub_redis.cli.output import Terminal, print_json
from bub_redis.cli.rendering import pairs_text


async def list_anchors(session: str, *, limit: int, as_json: bool) -> None:
    """Print the newest anchors, in order. Raises NotFound, InvalidInput, and what `connected` raises."""
    async with connected_tape(session) as (_, tape):
        found = await tape.anchors(limit)
    if as_json:
        for anchor in found:
            print_json(asdict(anchor))
    elif found:
        Terminal().columns(("ANCHOR", "STATE"), [(anchor.name or "''", pairs_text(anchor.state)) for anchor in found])
    else:
        Terminal().print("this tape has no anchor" if limit else "no anchor is shown: --limit is 0")
