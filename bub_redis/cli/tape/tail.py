"""`bub-redis tape tail`."""

from bub_redis.cli.connect import connected, connected_tape
from bub_redis.cli.embedded import command_settings
from bub_redis.cli.patience import Patience
from bub_redis.cli.tape.show import EntryPrinter, newest
from bub_redis.errors import Outage
from bub_redis.storage.tail import tail_tape
from bub_redis.tape import TapeQuery, session_tape_name
from bub_redis.tape.store import Head


async def tail_session(session: str, *, last: int, follow: bool, as_json: bool) -> None:
    """Print the end of the tape; with `follow` go on for ever, through outages of any length.

    Raises NotFound for a session without a tape unless it follows; InvalidInput, and what `connected` raises at first.
    """
    if follow:
        await _follow(session, last=last, as_json=as_json)
        return
    async with connected_tape(session) as (client, tape):
        printer = EntryPrinter((await client.store.head(tape.name)).last, as_json=as_json)
        for entry in await newest(client, tape.query(), last):
            printer.show(entry)


async def _follow(session: str, *, last: int, as_json: bool) -> None:
    settings = command_settings()
    name = session_tape_name(session, settings.workspace)
    async with connected(settings) as client:
        head = await client.store.head(name)
        printer = EntryPrinter(max(head.last, 999), as_json=as_json)
        for entry in await newest(client, TapeQuery(name, client.store), last):
            # What is committed between the two reads is read behind `head`, and only there.
            if entry.id <= head.last:
                printer.show(entry)
        patience = Patience(limit_s=None)
        after = head.last_id if head != Head() else "0-0"
        while True:
            try:
                await client.store.head(name)
                patience.over()
                async for stream_id, entry in tail_tape(client.store, name, after):
                    printer.show(entry)
                    after = stream_id
            except Outage as outage:
                await patience.wait(outage)
