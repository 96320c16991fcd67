"""The agent: the loop over a model and its tools, events, and the recorder. No Redis here.

Nothing in this room reads settings or the environment; models and stores are handed in.
"""

from bub_redis.agent import events
from bub_redis.agent.agent import Agent
from bub_redis.agent.budget import Budget, ContextSize, context_size
from bub_redis.agent.events import EventBus
from bub_redis.agent.handoff import MAX_AUTO_HANDOFF_RETRIES
from bub_redis.agent.hooks import Overflow
from bub_redis.agent.model import Model
from bub_redis.agent.prompt import Prompt, PromptContext, PromptSection, SystemPrompt
from bub_redis.agent.recorder import TapeRecorder
from bub_redis.agent.resume import Resume
from bub_redis.agent.steering import Inbox, MemoryInbox, Steer
from bub_redis.agent.stream import EventStream, StreamEvent
from bub_redis.agent.tools import Tool, ToolContext, tool

__all__ = [
    "MAX_AUTO_HANDOFF_RETRIES",
    "Agent",
    "Budget",
    "ContextSize",
    "EventBus",
    "EventStream",
    "Inbox",
    "MemoryInbox",
    "Model",
    "Overflow",
    "Prompt",
    "PromptContext",
    "PromptSection",
    "Resume",
    "Steer",
    "StreamEvent",
    "SystemPrompt",
    "TapeRecorder",
    "Tool",
    "ToolContext",
    "context_size",
    "events",
    "tool",
]
