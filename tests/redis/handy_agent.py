"""An agent whose tools change the run's state or block their thread, for workers under test."""

import json
import time

from bub_redis.agent import Agent, ToolContext, tool
from bub_redis.testing import ModelRequest, Reply, ScriptedModel, call, say
from tests.redis.agents import note


@tool
def buy(context: ToolContext) -> str:
    """Put a book into the cart that is in the state."""
    context.state["cart"].append("book")
    return "bought"


@tool
def redeem(context: ToolContext) -> str:
    """Take the coupon out of the state."""
    del context.state["coupon"]
    return "redeemed"


@tool
def flip(context: ToolContext) -> str:
    """Turn on what is off."""
    context.state["on"] = not context.state["on"]
    return "flipped"


@tool
def look(context: ToolContext) -> str:
    """Tell the whole state."""
    return json.dumps(dict(context.state))


@tool
def nap(seconds: float) -> str:
    """Sleep, in a thread that nobody can wake."""
    note("nap")
    time.sleep(seconds)  # noqa: TID251 - the tool's own work
    return "slept"


def answer(request: ModelRequest) -> Reply:
    """Call the tools that the prompt names, one after the other, and tell what the last one said."""
    named = request.prompt.split()
    done = len(request.tool_results)
    if done == len(named):
        return say(request.tool_results[-1])
    name, _, seconds = named[done].partition("=")
    return call(name, seconds=float(seconds)) if seconds else call(name)


agent = Agent(model=ScriptedModel(answer), tools=[buy, redeem, flip, look, nap], name="handy")
