"""Archive and reset of a tape together with its sidecars: the main tape decides, a sidecar that fails stops nothing.

Where the main tape cannot be archived nothing changes. Where a sidecar cannot, the tape is archived and reset, and that
sidecar is kept: else the only copy of what it holds would go (case 99).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bub_redis.errors import BubError, Conflict, InvalidInput, SessionBusy
from bub_redis.tape.archive import Archive
from bub_redis.tape.block import Block
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.fork import Fork
from bub_redis.tape.sidecar import reset_event, sidecar_tape_name
from bub_redis.tape.store import CommitStore, Head, SurveyedStore, has_commit

_TRIES = 5


@dataclass(frozen=True)
class Lifecycle:
    """A tape, in a store or in a fork, with the sidecars that share its fate."""

    store: SurveyedStore
    tape: str
    sidecars: Sequence[str]

    async def archive(self, archive: Archive) -> tuple[Path, list[TapeEntry]]:
        """Archive the tape and its sidecars: the tape's file, and for each sidecar the event that tells how it went."""
        path = await archive.write(self.store, self.tape, await self._head())
        return path, [(await self.archive_sidecar(archive, name, "manual"))[1] for name in self.sidecars]

    async def archive_sidecar(self, archive: Archive, sidecar: str, reason: str) -> tuple[Path | None, TapeEntry]:
        """Archive one sidecar: the file, None if that failed, and the event that tells how it went."""
        path: Path | None = None
        try:
            path = await archive.write(self.store, sidecar_tape_name(self.tape, sidecar))
            outcome = {"status": "ok", "archive": str(path)}
        except BubError as error:
            outcome = {"status": "error", "error": str(error)}
        data = {"sidecar": sidecar, "reason": reason, **outcome}
        return path, TapeEntry.event("sidecar.archive", data, context=False)

    async def reset(
        self,
        opening: Sequence[TapeEntry],
        *,
        seen: Head | None = None,
        kept: Sequence[str] = (),
        force: bool = False,
        wait_s: float = 0.0,
    ) -> None:
        """Reset the tape and its sidecars, without those `kept`; see `CommitStore.reset`."""
        Block.of(opening)  # refuses what cannot be stored before anything is emptied
        tapes = [sidecar_tape_name(self.tape, name) for name in self.sidecars if name not in kept]
        if isinstance(self.store, Fork):
            await self.store.reset(self.tape, opening, sidecars=tapes)
        else:
            store = _resettable(self.store)
            await store.reset(self.tape, opening, seen=seen, sidecars=tapes, force=force, wait_s=wait_s)

    async def reset_archived(
        self,
        archive: Archive,
        opening: Callable[[Path], Sequence[TapeEntry]],
        *,
        kept: Sequence[str] = (),
        force: bool = False,
        wait_s: float = 0.0,
    ) -> Path:
        """Archive the tape and its sidecars, then reset them; the file of the tape, which `opening` is told.

        What is appended to the tape between the two is kept, behind the opening. Where a turn was merged between them
        all is done again. Raises Conflict if that happens each time, and what archive and reset raise.
        """
        tries = 0
        while True:
            seen = await self._head()
            path = await archive.write(self.store, self.tape, seen)
            files = [path]
            events: list[TapeEntry] = []
            lost: list[str] = []
            for name in self.sidecars:
                if name not in kept:
                    file, event = await self.archive_sidecar(archive, name, "tape.reset")
                    events.append(event)
                    if file is None:
                        lost.append(name)
                    else:
                        files.append(file)
            events += [reset_event(name, "skipped", "tape.reset", cause="archive_failed") for name in lost]
            tries += 1
            try:
                await self.reset([*opening(path), *events], seen=seen, kept=[*kept, *lost], force=force, wait_s=wait_s)
            except (Conflict, SessionBusy) as refusal:
                # Nothing was reset: what was archived is still on the tapes.
                await archive.take_back(files)
                if tries == _TRIES or not isinstance(refusal, Conflict):
                    raise
                continue
            return path

    async def reset_sidecar(self, tape: str, wait_s: float) -> None:
        """Empty one sidecar's tape."""
        if isinstance(self.store, Fork):
            await self.store.reset(tape)
        else:
            await _resettable(self.store).reset(tape, wait_s=wait_s)

    async def _head(self) -> Head | None:
        """Where the tape stands, for a store that others write to as well."""
        return await self.store.head(self.tape) if has_commit(self.store) else None


def _resettable(store: SurveyedStore) -> CommitStore:
    if not has_commit(store):
        raise InvalidInput(f"tapes of a {type(store).__name__} cannot be reset")
    return store
