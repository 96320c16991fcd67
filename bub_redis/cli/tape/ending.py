"""`bub-redis tape reset` and `bub-redis tape delete`."""

from bub_redis.cli.connect import connected_tape
from bub_redis.cli.output import Terminal
from bub_redis.errors import InvalidInput


async def reset_tape(session: str, *, yes: bool, force: bool) -> None:
    """Empty the tape. Raises InvalidInput without `yes`, NotFound, SessionBusy, and what `connected` raises."""
    async with connected_tape(session) as (client, tape):
        _sure(tape.name, (await client.store.head(tape.name)).last, yes)
        await client.reset(session, force=force)
    Terminal().print(f"the tape of {session} begins anew")


async def delete_tape(session: str, *, yes: bool) -> None:
    """Remove the tape. Raises InvalidInput without `yes`, NotFound, SessionBusy, and what `connected` raises."""
    async with connected_tape(session) as (client, tape):
        _sure(tape.name, (await client.store.head(tape.name)).last, yes)
        await client.delete(session)
    Terminal().print(f"the tape of {session} is gone")


def _sure(tape: str, entries: int, yes: bool) -> None:
    if not yes:
        raise InvalidInput(f"this drops {entries} entries of tape {tape!r} for good; if that is meant, add --yes")
