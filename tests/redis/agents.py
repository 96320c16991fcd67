"""Agents for workers under test."""

import asyncio

from bub_redis.agent import Agent, tool
from bub_redis.testing import ModelRequest, Reply, ScriptedModel, call, say


@tool
def lookup(order: str) -> dict[str, str]:
    """Find an order."""
    return {"order": order, "status": "shipped"}


@tool
async def wait(seconds: float) -> str:
    """Let time pass."""
    await asyncio.sleep(seconds)  # noqa: TID251 - the tool's own work
    return "waited"


def answer(request: ModelRequest) -> Reply:
    """Echo what was said; `order N` calls a tool first, `wait S` a slow one, `slowly …` streams slowly."""
    last = request.messages[-1]
    if last["role"] == "tool":
        return say(f"done: {last['content']}")
    word, _, rest = last["content"].partition(" ")
    match word:
        case "order":
            return call("lookup", order=rest)
        case "wait":
            return call("wait", seconds=float(rest))
        case "slowly":
            return say(rest, delay_s=0.1)
        case _:
            return say(f"echo: {last['content']}")


agent = Agent(model=ScriptedModel(answer), tools=[lookup, wait], name="echo")
