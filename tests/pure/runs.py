"""Driving an agent in tests: run to the end, and look at the tape."""

from typing import Any

from bub_redis.agent import Agent, StreamEvent
from bub_redis.tape import TapeEntry

TAPE = "customer-42"


async def played(agent: Agent, prompt: str = "Hello", **arguments: Any) -> list[StreamEvent]:
    """Run `prompt` on TAPE to its end and return everything that was streamed."""
    async with agent.run(prompt, **{"tape": TAPE, **arguments}) as stream:
        return [event async for event in stream]


async def answered(agent: Agent, prompt: str = "Hello", **arguments: Any) -> str:
    """Run `prompt` on TAPE to its end and return the answer."""
    answer: str = (await played(agent, prompt, **arguments))[-1].data["text"]
    return answer


async def entries(agent: Agent, *kinds: str) -> list[TapeEntry]:
    """What stands on TAPE, of these kinds."""
    return await agent.tape(TAPE).query().kinds(*kinds).all()


async def events(agent: Agent, name: str) -> list[dict[str, Any]]:
    """The data of the events of that name on TAPE."""
    return [entry.payload["data"] for entry in await entries(agent, "event") if entry.payload["name"] == name]


async def results(agent: Agent) -> list[Any]:
    """The tool results on TAPE, in order."""
    return [result for entry in await entries(agent, "tool_result") for result in entry.payload["results"]]
