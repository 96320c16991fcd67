"""`bub-redis tape show`."""

from dataclasses import asdict

from bub_redis.cli.connect import connected
from bub_redis.cli.output import Terminal, print_json
from bub_redis.cli.rendering import entry_lines
from bub_redis.errors import NotFound
from bub_redis.settings import load_settings
from bub_redis.tape import TapeQuery, session_tape_name


async def show_tape(session: str, *, as_json: bool) -> None:
    """Print the session's tape. Raises NotFound for one without entries, InvalidInput, and what `connected` raises."""
    settings = load_settings()
    name = session_tape_name(session, settings.workspace)
    async with connected(settings) as client:
        entries = await TapeQuery(name, client.store).all()
    if not entries:
        raise NotFound(f"session {session!r} has no tape in namespace {settings.namespace!r}")
    if as_json:
        for entry in entries:
            print_json(asdict(entry))
        return
    terminal = Terminal()
    for line in entry_lines(entries, terminal.line_cells):
        terminal.print(line)
