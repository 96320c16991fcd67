"""Spilling in a run: results that are too large are replaced before the model and the tape get them."""

from typing import Annotated, Any

from pydantic import Field

from bub_redis.agent.events import EventBus, ToolCallFinished
from bub_redis.agent.tools import ToolContext, tool
from bub_redis.errors import NotFound
from bub_redis.tape import Tape
from bub_redis.tape.spill import MAX_READ_CHUNKS, SPILL_SIDECAR, SpillStore

SPILL_READ = "spill.read"


class Spilling:
    """Replace large results by a preview, on every tape that mounts a SpillStore; on others nothing happens.

    Subscribe it behind what else replaces results: what it has seen is small.
    """

    def subscribe(self, events: EventBus) -> None:
        """Look at the results that `events` delivers."""
        events.on(ToolCallFinished, self._tool_call_finished)

    async def _tool_call_finished(self, event: ToolCallFinished) -> None:
        spill = mounted_spill(event.tape)
        if spill is None or event.call.tool == SPILL_READ:
            return
        if event.error is not None and isinstance(event.result, dict):
            event.result = spill.capped(event.result)
            return
        event.result = await spill.spill(event.tape, event.result, tool=event.call.tool, run_id=event.run_id)


def mounted_spill(tape: Tape) -> SpillStore | None:
    """The SpillStore that a tape mounts; None where there is none, or something else has its name (case 55)."""
    sidecar = tape.get_sidecar(SPILL_SIDECAR)
    return sidecar if isinstance(sidecar, SpillStore) else None


@tool(name=SPILL_READ, idempotent=True)
async def spill_read(
    context: ToolContext,
    handle: str,
    cursor: Annotated[int, Field(ge=0)] = 0,
    count: Annotated[int, Field(ge=1)] = 1,
    from_end: bool = False,
) -> dict[str, Any]:
    """Read a tool result that was too large for the conversation, by the handle that stands in its place.

    Reads up to `count` chunks of 16 KB, at most 4, from chunk `cursor` on; with `from_end`, counted from the end. Go on
    with the `next_cursor` of the answer until it is `complete`.
    """
    spill = mounted_spill(context.tape)
    page = None
    if spill is not None:
        page = await spill.read(
            context.tape, handle, cursor=cursor, count=min(count, MAX_READ_CHUNKS), from_end=from_end
        )
    if page is None:
        raise NotFound(f"the result {handle[:80]!r} is not stored")
    return {
        "chunks": [page.start, page.stop],
        "of": page.manifest.chunks,
        "bytes": page.manifest.bytes,
        "next_cursor": page.next_cursor,
        "complete": page.complete,
        "content": page.content,
    }
