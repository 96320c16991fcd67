"""An agent whose one tool answers at length, for workers under test."""

from bub_redis.agent import Agent, tool
from bub_redis.testing import ModelRequest, Reply, ScriptedModel, call, say

LARGE = "項目 " * 500_000


@tool(idempotent=True)
def report() -> str:
    """Answer with more than fits into a context."""
    return LARGE


def answer(request: ModelRequest) -> Reply:
    """Ask for the report, then tell what is known of it."""
    last = request.messages[-1]
    return say(last["content"]) if last["role"] == "tool" else call("report")


agent = Agent(model=ScriptedModel(answer), tools=[report], name="spilling")
