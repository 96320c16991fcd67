"""`bub-redis tape parked`."""

from dataclasses import asdict

from bub_redis.cli.connect import connected
from bub_redis.cli.embedded import command_settings
from bub_redis.cli.output import Terminal, print_json
from bub_redis.cli.rendering import ago
from bub_redis.cli.tape.show import EntryPrinter
from bub_redis.tape import session_tape_name


async def show_parked(session: str, *, as_json: bool) -> None:
    """Print the parked overlays of a session, oldest first. Raises InvalidInput, and what `connected` raises."""
    settings = command_settings()
    async with connected(settings) as client:
        overlays = await client.store.parked(session_tape_name(session, settings.workspace))
    if as_json:
        for overlay in overlays:
            print_json(asdict(overlay))
        return
    terminal = Terminal()
    if not overlays:
        terminal.print(f"nothing of session {session!r} is parked")
    for overlay in overlays:
        more = f", and {overlay.dropped} more that were too large" if overlay.dropped else ""
        title = f"turn {overlay.turn}, parked {ago(overlay.parked_ms)} ago: {len(overlay.entries)} entries{more}"
        terminal.print(title, style="yellow")
        printer = EntryPrinter(len(overlay.entries), as_json=False)
        for entry in overlay.entries:
            printer.show(entry)
