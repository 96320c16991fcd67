"""`bub-redis tape reset` and `bub-redis tape delete`."""

from shlex import quote

from bub_redis.cli.connect import connected_tape
from bub_redis.cli.output import Terminal
from bub_redis.errors import InvalidInput, SessionBusy
from bub_redis.turns import TurnClient


async def reset_tape(session: str, *, yes: bool, force: bool) -> None:
    """Empty the tape. Raises InvalidInput without `yes`, NotFound, SessionBusy, and what `connected` raises."""
    async with connected_tape(session) as (client, tape):
        _sure(tape.name, (await client.store.head(tape.name)).last, yes)
        try:
            await client.reset(session, force=force)
        except SessionBusy as busy:
            raise await _held(client, session, busy, f"`bub-redis tape reset {quote(session)} --yes --force`") from None
    Terminal().print(f"the tape of {session} begins anew")


async def delete_tape(session: str, *, yes: bool) -> None:
    """Remove the tape. Raises InvalidInput without `yes`, NotFound, SessionBusy, and what `connected` raises."""
    async with connected_tape(session) as (client, tape):
        _sure(tape.name, (await client.store.head(tape.name)).last, yes)
        try:
            await client.delete(session)
        except SessionBusy as busy:
            raise await _held(client, session, busy) from None
    Terminal().print(f"the tape of {session} is gone")


async def _held(client: TurnClient, session: str, busy: SessionBusy, instead: str = "") -> SessionBusy:
    """The same error with what can be done, where a turn of the session is in the way. Raises Outage."""
    head = await client.queue.head(client.tape(session).name)
    if head is None:
        return busy
    turn = f"{quote(session)} {quote(head.id)}"
    ways = [f"wait for it with `bub-redis turn result {turn} --wait 60`", f"`bub-redis turn cancel {turn}`"]
    ways += [instead] if instead else []
    return SessionBusy(f"turn {head.id!r} of session {session!r} has not ended: {', '.join(ways[:-1])} or {ways[-1]}")


def _sure(tape: str, entries: int, yes: bool) -> None:
    if not yes:
        raise InvalidInput(f"this drops {entries} entries of tape {tape!r} for good; if that is meant, add --yes")
