"""Agents for workers under test. What they do is written to the file that TEST_TRACE names, if any."""

import asyncio
import os
import signal
import time
from pathlib import Path

from bub_redis.agent import Agent, ToolContext, tool
from bub_redis.testing import ModelRequest, Reply, ScriptedModel, call, calls, say


def note(line: str) -> None:
    """Leave a trace that outlives the process."""
    if path := os.environ.get("TEST_TRACE"):
        with Path(path).open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")


@tool
def lookup(order: str, context: ToolContext) -> dict[str, str]:
    """Find an order."""
    note(f"lookup {context.idempotency_key}")
    return {"order": order, "status": "shipped"}


@tool(idempotent=True)
def stock(order: str, context: ToolContext) -> str:
    """Count what is left of an article; may be asked again."""
    note(f"stock {context.idempotency_key}")
    return f"7 of {order}"


@tool
async def wait(seconds: float) -> str:
    """Let time pass."""
    note("wait")
    await asyncio.sleep(seconds)  # noqa: TID251 - the tool's own work
    return "waited"


@tool
async def block(seconds: float, context: ToolContext) -> str:
    """Hold the event loop without ever giving way: what a tool must not do."""
    note(f"block {context.idempotency_key}")
    time.sleep(seconds)  # noqa: ASYNC251, TID251 - that is the point
    return "blocked"


@tool(idempotent=True)
def die() -> str:
    """Take the process down, each time it is tried."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def answer(request: ModelRequest) -> Reply:
    """Echo what was said; `order N` calls a tool first, `both N` two, `wait S` a slow one; `slowly …` streams."""
    note("model")
    last = request.messages[-1]
    if last["role"] == "tool":
        slow = request.prompt.startswith("report")
        return say(f"done: {last['content']}", delay_s=0.3 if slow else None)
    word, _, rest = last["content"].partition(" ")
    match word:
        case "order":
            return call("lookup", order=rest)
        case "stock" | "report":
            return call("stock", order=rest)
        case "both":
            return calls(call("lookup", order=rest), call("stock", order=rest))
        case "wait":
            return call("wait", seconds=float(rest))
        case "block":
            return call("block", seconds=float(rest))
        case "die":
            return call("die")
        case "slowly":
            return say(rest, delay_s=0.1)
        case _:
            return say(f"echo: {last['content']}")


agent = Agent(model=ScriptedModel(answer), tools=[lookup, stock, wait, block, die], name="echo")
