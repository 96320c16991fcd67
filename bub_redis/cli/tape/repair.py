"""`bub-redis tape repair`."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from bub_redis.cli.connect import connected
from bub_redis.cli.embedded import command_settings
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal, print_json
from bub_redis.errors import NotFound
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.scanning import keys_like
from bub_redis.storage.store import RedisTapeStore
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
        aside = await _set_aside(store, found) if yes and not as_json else {}
    needed = [repair for repair in found if repair.needed]
    if as_json:
        print_json({"repaired": yes, "tapes": [asdict(repair) for repair in needed]})
    else:
        _show(needed, settings.namespace, session, aside, done=yes)
    return ExitCode.CONFLICT if needed and not yes else ExitCode.OK


async def _set_aside(store: RedisTapeStore, found: list[Repair]) -> dict[str, str]:
    """Where the keys are now that were renamed: the last of those that repairs gave such names. Raises Outage."""
    aside = {}
    for repair in found:
        if repair.renamed:
            keys = TapeKeys(store.namespace, repair.tape)
            names = await keys_like(store.server, keys.set_aside_pattern, beside=keys.state)
            for name in names:
                key, _, at_ms = name.rpartition(":damaged:")
                if key in repair.renamed and at_ms.isdecimal():
                    aside[key] = name
    return aside


def _show(needed: list[Repair], namespace: str, session: str, aside: Mapping[str, str], *, done: bool) -> None:
    terminal = Terminal()
    for repair in needed:
        for line in _lines(repair, TapeKeys(namespace, repair.tape), aside, done=done):
            terminal.print(f"{repair.tape}: {line}")
    if not needed:
        terminal.print(f"there is nothing to repair on the tape of {session}")
    elif done:
        terminal.print(f"the tape of {session} can be written again; turns that wait for it go on within half a minute")
    else:
        terminal.print(f"nothing is changed yet; repair it with `bub-redis tape repair {session} --yes`")


def _lines(repair: Repair, keys: TapeKeys, aside: Mapping[str, str], *, done: bool) -> Iterator[str]:
    was = "was" if done else "will be"
    for key in repair.renamed:
        yield f"{key} is of another type; it {was} renamed to {aside.get(key, f'{key}:damaged:<ms>')}"
    if repair.foreign:
        what = _counted(repair.foreign, "entry is not of bub-redis; it", "entries are not of bub-redis; they", done)
        yield f"{what} moved to {keys.damaged}"
    if repair.beyond:
        known = "behind the last one that is known, as if bub-redis had written"
        what = _counted(repair.beyond, f"entry stands {known} it; it", f"entries stand {known} them; they", done)
        yield f"{what} kept"
    if repair.missing:
        gone = f"{repair.missing} {'entry is' if repair.missing == 1 else 'entries are'} gone for good"
        behind = "it" if repair.missing == 1 else "them"
        yield f"{gone}; {f'the tape goes on behind {behind}' if done else 'if there is a backup, restore it instead'}"
    for name in repair.rebuilt:
        yield f"{_BESIDE[name]} does not fit the entries; it {was} made anew from them"


def _counted(count: int, one: str, several: str, done: bool) -> str:
    """The words for so many, and for when something becomes of them."""
    if count == 1:
        return f"1 {one} {'was' if done else 'will be'}"
    return f"{count} {several} {'were' if done else 'will be'}"
