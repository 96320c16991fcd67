"""`bub-redis queue`."""

from dataclasses import asdict

from bub_redis.cli.connect import connected
from bub_redis.cli.output import Terminal, print_json
from bub_redis.turns.overview import QueueOverview
from bub_redis.turns.workers import Workers


async def show_overview(*, as_json: bool) -> None:
    """Print counts and workers. Raises what `connected` raises."""
    async with connected() as client:
        counts = await QueueOverview(client.queue).counts()
        workers = await Workers(client.queue).alive()
    if as_json:
        print_json({**asdict(counts), "behind": counts.behind, "workers": [asdict(worker) for worker in workers]})
        return
    terminal = Terminal()
    terminal.facts(
        [
            ("running", str(counts.running)),
            ("waiting", f"{counts.waiting} for a worker, or to be tried again"),
            ("behind", f"{counts.behind} for a turn of the same session"),
            ("dead", f"{counts.dead} that took their worker down too often"),
            ("workers", str(len(workers) or "none: start one with `bub-redis worker MODULE:ATTRIBUTE`")),
        ]
    )
    if workers:
        terminal.print()
        terminal.columns(
            ("WORKER", "HOST", "PID", "RUNNING"),
            [(one.id, one.host, str(one.pid), f"{one.running} of {one.max_jobs}") for one in workers],
        )
