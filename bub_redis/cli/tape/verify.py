"""`bub-redis tape verify`."""

from dataclasses import asdict, dataclass
from pathlib import Path

from bub_redis.cli.connect import connected_tape
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal, print_json
from bub_redis.errors import Conflict, InvalidInput, NotFound, TapeBlocked
from bub_redis.storage.health import uncounted_entries
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape.receipt import Verification, verify_entries, verify_export
from bub_redis.tape.stream_id import StreamId
from bub_redis.turns.overview import QueueOverview


@dataclass(frozen=True)
class _Verdict:
    """What was found, and what the queue side knows better."""

    found: Verification
    unreadable: int
    unfit: tuple[str, ...] = ()
    """What stands beside the stream and does not fit it."""
    lost_receipt: str = ""
    """The last receipt that the queue side was shown, if the tape does not hold it any more."""

    @property
    def holds(self) -> bool:
        return self.found.intact and not (self.unreadable or self.unfit or self.lost_receipt)


async def verify_tape(session: str | None, file: Path | None, *, as_json: bool) -> ExitCode:
    """Print the verdict; CONFLICT unless the tape is intact. Raises NotFound, InvalidInput, what `connected` raises."""
    if (session is None) == (file is None):
        raise InvalidInput("name either a session or --file FILE")
    verdict = _of_file(file) if file is not None else await _of_session(session or "")
    if as_json:
        beside = {
            "unreadable": verdict.unreadable,
            "unfit": verdict.unfit,
            "lost_receipt": verdict.lost_receipt or None,
        }
        print_json(asdict(verdict.found) | beside)
    else:
        _show(verdict)
    return ExitCode.OK if verdict.holds else ExitCode.CONFLICT


def _of_file(file: Path) -> _Verdict:
    try:
        with file.open("rb") as lines:
            found = verify_export(lines)
    except OSError as error:
        raise NotFound(f"{file} cannot be read ({error.strerror})") from None
    if not found.entries and not found.unreadable:
        raise NotFound(f"{file} holds no entry: there is nothing to prove")
    return _Verdict(found, found.unreadable)


async def _of_session(session: str) -> _Verdict:
    async with connected_tape(session) as (client, tape):
        keys = TapeKeys(client.store.namespace, tape.name)
        try:
            shown = await QueueOverview(client.queue).last_receipt(tape.name)
            found = await verify_entries(client.store.oldest_first(tape.name))
            on_tape = (await client.store.head(tape.name)).receipt
            uncounted = await uncounted_entries(client.store.server, keys)
            unfit = [name for repair in await client.store.survey(tape.name) for name in repair.rebuilt]
        except TapeBlocked:
            raise Conflict(
                f"a key of tape {tape.name!r} is of another type; see `bub-redis tape repair {session}`"
            ) from None
        unreadable = max(client.store.damage.count(tape.name), abs(uncounted))
    lost = shown[0] if shown and StreamId.of(shown[0]) > StreamId.of(on_tape) else ""
    return _Verdict(found, unreadable, tuple(dict.fromkeys(unfit)), lost)


def _show(verdict: _Verdict) -> None:
    found, terminal = verdict.found, Terminal()
    proved = f", of which {found.entries - found.uncovered} are proved; the next receipt proves the rest"
    problems = [
        f"receipt {number} does not match what stands before it: something was edited or is missing"
        for number in found.broken
    ]
    problems += [f"entry {number} does not follow on the one before it" for number in found.misplaced]
    if verdict.unreadable:
        entries = "1 entry was" if verdict.unreadable == 1 else f"{verdict.unreadable} entries were"
        problems.append(f"{entries} not written by bub-redis, removed, or cannot be read")
    if verdict.unfit:
        problems.append(f"{', '.join(verdict.unfit)}: does not fit the entries; see `bub-redis tape repair`")
    if verdict.lost_receipt:
        problems.append(f"the end is lost: receipt {verdict.lost_receipt} was given and is not there any more")
    for problem in problems:
        terminal.print(problem, style="red")
    for number in found.lost_tails:
        terminal.print(
            f"entry {number} tells that the tape had lost its end before: what is left is proved", style="yellow"
        )
    terminal.facts(
        [
            ("verdict", "intact" if verdict.holds else "NOT intact"),
            ("entries", f"{found.entries}{'' if found.broken or found.misplaced else proved}"),
            ("receipts", str(found.receipts)),
            ("digest", found.digest or "none"),
        ]
    )
