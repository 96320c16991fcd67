"""`bub-redis tape ls`."""

import asyncio

from bub_redis.cli.connect import connected
from bub_redis.cli.output import Terminal, print_json
from bub_redis.cli.rendering import ago

_READ_AT_ONCE = 100


async def list_tapes(*, as_json: bool) -> None:
    """Print the tapes with their number of entries and last commit. Raises what `connected` raises."""
    async with connected() as client:
        names = await client.store.list_tapes()
        heads = []
        for start in range(0, len(names), _READ_AT_ONCE):
            heads += await asyncio.gather(*map(client.store.head, names[start : start + _READ_AT_ONCE]))
    tapes = sorted(zip(names, heads, strict=True), key=lambda tape: (-tape[1].last_ms, tape[0]))
    if as_json:
        for name, head in tapes:
            print_json({"tape": name, "entries": head.last, "last_commit_ms": head.last_ms})
    elif tapes:
        Terminal().columns(
            ("TAPE", "ENTRIES", "LAST COMMIT"),
            # Where `state` was lost only `tape repair` knows more.
            [(name, str(head.last or "?"), f"{ago(head.last_ms)} ago" if head.last else "?") for name, head in tapes],
        )
    else:
        Terminal().print("there is no tape yet")
