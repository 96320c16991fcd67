"""`bub-redis tape show`."""

from collections.abc import AsyncIterator
from dataclasses import asdict

from bub_redis.cli.connect import connected_tape
from bub_redis.cli.output import Terminal, print_json
from bub_redis.cli.rendering import EntryLines
from bub_redis.tape import Tape, TapeEntry, TapeQuery
from bub_redis.turns import TurnClient


async def show_tape(session: str, *, after: str | None, last: int | None, as_json: bool) -> None:
    """Print the session's tape, page by page. Raises NotFound for one without entries, and for a missing anchor;
    InvalidInput, and what `connected` raises."""
    async with connected_tape(session) as (client, tape):
        printer = EntryPrinter((await client.store.head(tape.name)).last, as_json=as_json)
        async for entry in _asked(client, tape, after, last):
            printer.show(entry)


async def _asked(client: TurnClient, tape: Tape, after: str | None, last: int | None) -> AsyncIterator[TapeEntry]:
    query = tape.query() if after is None else tape.query().after_anchor(after)
    if last is not None:
        for entry in await newest(client, query, last):
            yield entry
    elif after is not None:
        for entry in await query.all():
            yield entry
    else:
        async for entry in client.store.oldest_first(tape.name):
            yield entry


async def newest(client: TurnClient, query: TapeQuery, count: int) -> list[TapeEntry]:
    """The last `count` entries of an answer, in order."""
    found: list[TapeEntry] = []
    if count:
        async for entry in client.store.newest_first(query):
            found.append(entry)
            if len(found) == count:
                break
    return found[::-1]


class EntryPrinter:
    """Prints entries one after another, for people or for programs."""

    def __init__(self, last_number: int, *, as_json: bool) -> None:
        """`last_number`: the largest that is expected, for the width of numbers."""
        self._as_json = as_json
        self._terminal = Terminal()
        self._lines = EntryLines(len(str(last_number)), self._terminal.line_cells)

    def show(self, entry: TapeEntry) -> None:
        """Print one entry."""
        if self._as_json:
            print_json(asdict(entry))
            return
        for line in self._lines.of(entry):
            self._terminal.print(line)
