"""A small soak: many sessions, two workers, one of them killed on the way. The tapes decide, not the counters."""

import asyncio
from datetime import timedelta

from bub_redis.settings import Settings
from bub_redis.turns import Turn, TurnClient
from tests.redis.audit import committed_turns
from tests.redis.workers import kill, worker_processes

SESSIONS = 10
TURNS = 5


async def test_every_turn_is_on_its_tape_once_and_in_order(client: TurnClient, settings: Settings) -> None:
    prompts = {
        f"session {s}": {f"m{t}": ("order {}" if t % 2 else "slowly one two {}").format(t) for t in range(TURNS)}
        for s in range(SESSIONS)
    }

    async def send(session: str) -> list[Turn]:
        turns = []
        for turn_id, prompt in prompts[session].items():
            turns.append(await client.enqueue(session, prompt, turn_id=turn_id))
            # A sender that did not hear the answer repeats itself.
            await client.enqueue(session, prompt, turn_id=turn_id)
        return turns

    with worker_processes(settings, "tests.redis.agents:agent", count=2) as processes:
        sent = await asyncio.gather(*(send(session) for session in prompts))
        first, *rest = [turn for turns in sent for turn in turns]
        await client.result(first, timeout=timedelta(seconds=20))
        kill(processes[0])
        for turn in rest:
            assert (await client.result(turn, timeout=timedelta(seconds=30))).status == "completed"
    for session, asked in prompts.items():
        assert await committed_turns(client.store, session, asked) == list(asked)
