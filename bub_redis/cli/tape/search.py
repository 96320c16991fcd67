"""`bub-redis tape search`."""

from bub_redis.cli.connect import connected_tape
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal
from bub_redis.cli.tape.show import EntryPrinter
from bub_redis.errors import InvalidInput


async def search_tape(session: str, text: str, *, limit: int, as_json: bool) -> ExitCode:
    """Print what was found; NOT_FOUND if nothing was. Raises NotFound, InvalidInput, and what `connected` raises."""
    if not text:
        raise InvalidInput("there is nothing to find in an empty text; name a word, or see it all with `tape show`")
    async with connected_tape(session) as (client, tape):
        printer = EntryPrinter((await client.store.head(tape.name)).last, as_json=as_json)
        found = await tape.search(text, limit)
    for entry in found:
        printer.show(entry)
    if not found and not as_json:
        Terminal().print(f"nothing on the tape holds {text!r}")
    return ExitCode.OK if found else ExitCode.NOT_FOUND
