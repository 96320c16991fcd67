"""A soak: many sessions, several workers, one of them killed on the way. The tapes decide, not the counters."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import pytest

from bub_redis.settings import Settings
from bub_redis.turns import Turn, TurnClient
from tests.redis.audit import committed_turns
from tests.redis.workers import kill, worker_processes


@dataclass(frozen=True)
class Load:
    """How much is done."""

    sessions: int
    turns: int
    workers: int
    limit_s: float


SMALL = Load(sessions=10, turns=5, workers=2, limit_s=30)
LARGE = Load(sessions=50, turns=20, workers=4, limit_s=240)


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(SMALL, id="small"),
        pytest.param(LARGE, id="large", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
async def test_every_turn_is_on_its_tape_once_and_in_order(client: TurnClient, settings: Settings, load: Load) -> None:
    prompts = {
        f"session {s}": {f"m{t}": ("order {}" if t % 2 else "slowly one two {}").format(t) for t in range(load.turns)}
        for s in range(load.sessions)
    }

    async def send(session: str) -> list[Turn]:
        turns = []
        for turn_id, prompt in prompts[session].items():
            turns.append(await client.enqueue(session, prompt, turn_id=turn_id))
            # A sender that did not hear the answer repeats itself.
            await client.enqueue(session, prompt, turn_id=turn_id)
        return turns

    with worker_processes(settings, "tests.redis.agents:agent", count=load.workers) as processes:
        sent = await asyncio.gather(*(send(session) for session in prompts))
        first, *rest = [turn for turns in sent for turn in turns]
        await client.result(first, timeout=timedelta(seconds=20))
        kill(processes[0])
        for turn in rest:
            result = await client.result(turn, timeout=timedelta(seconds=load.limit_s))
            assert result.status == "completed"
    for session, asked in prompts.items():
        assert await committed_turns(client.store, session, asked) == list(asked)
