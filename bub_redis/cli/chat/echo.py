"""Whom chat lets answer where no model is set: nobody intelligent, but with real turns, tools and tapes."""

from datetime import UTC, datetime

from bub_redis.agent import Agent, tool
from bub_redis.testing import ModelRequest, Reply, ScriptedModel, call, say

_PIECE_S = 0.02


@tool
def clock() -> str:
    """The time now."""
    return datetime.now(UTC).strftime("%H:%M:%S UTC")


def _reply(request: ModelRequest) -> Reply:
    if request.tool_results:
        return say(f"It is {request.tool_results[-1]}.", delay_s=_PIECE_S)
    if "time" in request.prompt.lower():
        return call("clock")
    return say(
        f"You said: {request.prompt} (I am a script, and only know the time: set BUB_MODEL to talk to a model.)",
        delay_s=_PIECE_S,
    )


agent = Agent(name="echo", model=ScriptedModel(_reply), tools=[clock])
