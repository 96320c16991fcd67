"""The agent: the loop over a model and its tools, events, and the recorder. No Redis here.

Nothing in this room reads settings or the environment; models and stores are handed in.
"""

from bub_redis.agent import events
from bub_redis.agent.agent import Agent
from bub_redis.agent.events import EventBus
from bub_redis.agent.model import Model
from bub_redis.agent.prompt import Prompt, PromptContext, PromptSection, SystemPrompt
from bub_redis.agent.recorder import TapeRecorder
from bub_redis.agent.stream import EventStream, StreamEvent
from bub_redis.agent.tools import Tool, ToolContext, tool

__all__ = [
    "Agent",
    "EventBus",
    "EventStream",
    "Model",
    "Prompt",
    "PromptContext",
    "PromptSection",
    "StreamEvent",
    "SystemPrompt",
    "TapeRecorder",
    "Tool",
    "ToolContext",
    "events",
    "tool",
]
