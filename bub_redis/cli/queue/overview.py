"""`bub-redis queue`."""

from dataclasses import asdict

from bub_redis.cli.connect import connected
from bub_redis.cli.output import Terminal, print_json
from bub_redis.turns.overview import QueueOverview


async def show_overview(*, as_json: bool) -> None:
    """Print counts and workers. Raises what `connected` raises."""
    async with connected() as client:
        overview = QueueOverview(client.queue)
        counts, workers = await overview.counts(), await overview.workers()
    if as_json:
        print_json({**asdict(counts), "behind": counts.behind, "workers": [asdict(worker) for worker in workers]})
        return
    terminal = Terminal()
    terminal.facts(
        [
            ("running", str(counts.running)),
            ("for a worker", f"{counts.waiting} wait, or for their pause to end"),
            ("behind others", f"{counts.behind} of their session"),
            ("dead", str(counts.dead)),
            ("workers", str(len(workers) or "none: start one with `bub-redis worker MODULE:ATTRIBUTE`")),
        ]
    )
    if workers:
        terminal.print()
        terminal.columns(
            ("WORKER", "HOST", "PID", "RUNNING"),
            [(one.id, one.host, str(one.pid), f"{one.running} of {one.max_jobs}") for one in workers],
        )
