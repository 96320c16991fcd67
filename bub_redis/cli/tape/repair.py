"""`bub-redis tape repair`."""

from collections.abc import Iterator
from dataclasses import asdict

from bub_redis.cli.connect import connected
from bub_redis.cli.embedded import command_settings
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal, print_json
from bub_redis.errors import NotFound
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.survey import Repair
from bub_redis.tape.names import session_tape_name
from bub_redis.turns.overview import QueueOverview

_BESIDE = {
    "anchors": "the index of anchors",
    "latest": "the index of the latest anchors",
    "state": "where the tape stands",
    "turns": "which turns are committed",
    "last id": "the last id of the stream",
}


async def repair_tape(session: str, *, yes: bool, wait_s: float, as_json: bool) -> ExitCode:
    """Print what is wrong with the tape, and with `yes` mend it; CONFLICT if something is left to mend.

    Raises NotFound, InvalidInput, SessionBusy, Conflict, and what `connected` raises.
    """
    settings = command_settings()
    name = session_tape_name(session, settings.workspace)
    async with connected(settings) as client:
        store = client.store
        turns = [one.turn.id for one in await QueueOverview(client.queue).turns_of(name)]
        found = await store.survey(name, turns=turns)
        if not any(repair.needed for repair in found) and not (await store.head(name)).last:
            raise NotFound(f"session {session!r} has no tape in namespace {settings.namespace!r}")
        if yes:
            found = await store.repair(name, turns=turns, wait_s=wait_s)
    needed = [repair for repair in found if repair.needed]
    if as_json:
        print_json({"repaired": yes, "tapes": [asdict(repair) for repair in needed]})
    else:
        _show(needed, settings.namespace, session, done=yes)
    return ExitCode.CONFLICT if needed and not yes else ExitCode.OK


def _show(needed: list[Repair], namespace: str, session: str, *, done: bool) -> None:
    terminal = Terminal()
    for repair in needed:
        for line in _lines(repair, TapeKeys(namespace, repair.tape), done=done):
            terminal.print(f"{repair.tape}: {line}")
    if not needed:
        terminal.print(f"there is nothing to repair on the tape of {session}")
    elif done:
        terminal.print(f"the tape of {session} can be written again; turns that wait for it go on within half a minute")
    else:
        terminal.print(f"nothing is changed yet; repair it with `bub-redis tape repair {session} --yes`")


def _lines(repair: Repair, keys: TapeKeys, *, done: bool) -> Iterator[str]:
    will_be = "was" if done else "will be"
    will_all_be = "were" if done else "will be"
    for key in repair.renamed:
        yield f"{key} is of another type; it {will_be} renamed to {key}:damaged:<ms>"
    if repair.foreign:
        yield f"{repair.foreign} entries are not of bub-redis; they {will_all_be} moved to {keys.damaged}"
    if repair.beyond:
        yield (
            f"{repair.beyond} entries stand behind the last one that is known, as if bub-redis had written them; they "
            f"{'were' if done else 'will be'} kept"
        )
    if repair.missing:
        yield (
            f"{repair.missing} entries are gone for good; if there is a backup, restore it instead"
            if not done
            else f"{repair.missing} entries are gone for good; the tape goes on behind them"
        )
    for name in repair.rebuilt:
        yield f"{_BESIDE[name]} does not fit the entries; it {will_be} made anew from them"
