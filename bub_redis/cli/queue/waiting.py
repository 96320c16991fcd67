"""`bub-redis queue waiting`."""

from bub_redis.cli.connect import connected
from bub_redis.cli.turn.listing import print_open
from bub_redis.turns.overview import QueueOverview


async def list_waiting(*, as_json: bool) -> None:
    """Print all turns that have not ended, blocked ones first. Raises what `connected` raises."""
    async with connected() as client:
        turns = await QueueOverview(client.queue).turns()
    print_open(sorted(turns, key=lambda turn: not turn.blocked), as_json=as_json)
