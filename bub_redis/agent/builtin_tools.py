"""Tools with which a model looks at its own tape and begins a new context: `Agent(tools=tape_tools())`.

Optional, each by itself. None of them reaches files, processes or other tapes.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from bub_redis.agent.spilling import spill_read
from bub_redis.agent.tools import Tool, ToolContext, tool
from bub_redis.tape import TapeEntry

TAPE_SEARCH = "tape.search"


class Search(BaseModel):
    """What `tape.search` looks for."""

    query: str = Field(description="The text to look for.")
    limit: int = Field(20, ge=1, le=100, description="The most entries to return.")
    start: str | None = Field(None, description="Only entries from this date on (ISO 8601).")
    end: str | None = Field(None, description="Only entries up to this date (ISO 8601).")
    kinds: list[Literal["message", "system", "tool_call", "tool_result"]] = Field(
        default_factory=list, description="Only entries of these kinds; all if empty."
    )


@tool(name="tape.info", idempotent=True)
async def tape_info(context: ToolContext) -> Any:
    """Tell how long this conversation's tape is, its last anchor and the last token usage."""
    return await context.tape.info()


@tool(name=TAPE_SEARCH, model=Search, idempotent=True)
async def tape_search(search: Search, context: ToolContext) -> dict[str, Any]:
    """Search the whole conversation, also what is no longer in the context; newest first."""
    query = context.tape.query().query(search.query).kinds(*search.kinds)
    if search.start or search.end:
        query = query.between_dates(search.start or "0001-01-01", search.end or "9999-12-31")
    found = await context.tape.search(query, search.limit)
    # A search that finds the answers of searches grows with each one.
    matches = [{"date": entry.date, "content": dict(entry.payload)} for entry in found if not _is_about_search(entry)]
    return {"matches": matches, "searched_for": search.query}


def _is_about_search(entry: TapeEntry) -> bool:
    results = entry.payload.get("results")
    return isinstance(results, list) and any(isinstance(r, dict) and "searched_for" in r for r in results)


@tool(name="tape.anchors", idempotent=True)
async def tape_anchors(context: ToolContext, limit: Annotated[int, Field(ge=1, le=100)] = 20) -> dict[str, Any]:
    """List the newest anchors of this conversation, with their states."""
    return {"anchors": await context.tape.anchors(limit)}


@tool(name="tape.handoff", asks_for="handoff", idempotent=True)
def tape_handoff(
    summary: Annotated[str, Field(description="All that is needed to go on without what was said before.")],
    name: Annotated[str, Field(min_length=1, max_length=200)] = "handoff",
) -> dict[str, str]:
    """Begin a new context after this step: it holds the summary and the user's request, and nothing else."""
    return {"anchor": name, "summary": summary}


@tool(name="tape.reset", asks_for="reset", idempotent=True)
def tape_reset() -> dict[str, str]:
    """Forget this conversation for good after this step, apart from the user's request."""
    return {"message": "the tape is reset after this step"}


def tape_tools() -> list[Tool]:
    """All of them: `tape.info`, `tape.search`, `tape.anchors`, `tape.handoff`, `tape.reset` and `spill.read`."""
    return [tape_info, tape_search, tape_anchors, tape_handoff, tape_reset, spill_read]
