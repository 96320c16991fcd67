"""`bub-redis tape info`."""

from dataclasses import asdict

from bub_redis.cli.connect import connected_tape
from bub_redis.cli.output import Terminal, print_json


async def show_info(session: str, *, as_json: bool) -> None:
    """Print the tape in numbers. Raises NotFound, InvalidInput, and what `connected` raises."""
    async with connected_tape(session) as (client, tape):
        info = await tape.info()
        head = await client.store.head(tape.name)
    if as_json:
        print_json({**asdict(info), "generation": head.generation, "receipt": head.receipt, "digest": head.digest})
        return
    rate = info.last_token_cache_hit_rate
    rows = [
        ("tape", info.name),
        ("entries", str(info.entries)),
        ("anchors", str(info.anchors)),
        ("last anchor", "none" if info.last_anchor is None else repr(info.last_anchor)),
        ("entries since", str(info.entries_since_last_anchor)),
        ("last token usage", "not told" if info.last_token_usage is None else str(info.last_token_usage)),
        ("of it cached", "not told" if rate is None else f"{rate:.0%}"),
        ("generation", f"{head.generation} (one more after each reset)"),
        ("last receipt", head.receipt or "none"),
        ("its digest", head.digest or "none"),
    ]
    Terminal().facts(rows)
