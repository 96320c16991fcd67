"""An attempt that loses its session, or gives it up: the turn is not charged, and the session is free at once."""

import asyncio
from datetime import timedelta

import pytest

from bub_redis.agent import Agent, events, tool
from bub_redis.errors import Outage
from bub_redis.settings import Settings, load_settings
from bub_redis.storage.keys import QueueKeys, TapeKeys
from bub_redis.tape import Tape
from bub_redis.testing import EmbeddedServer, ScriptedModel, call, say, wait_until
from bub_redis.turns import TurnClient
from bub_redis.turns.overview import QueueOverview
from tests.redis.agents import agent
from tests.redis.frames import shown
from tests.redis.workers import worker_processes, working

SOON = timedelta(seconds=10)


@pytest.fixture
def long_lease(settings: Settings) -> Settings:
    """Nothing here waits for a lease to run out."""
    return settings.model_copy(update={"lease_s": 60.0})


async def crashes(client: TurnClient, settings: Settings, full_id: str) -> int:
    key = QueueKeys(settings.namespace).turn(full_id)
    return int(await client.server.commands.execute_command("HGET", key, "crashes"))


async def test_a_session_lost_to_a_library_fork_is_no_crash(client: TurnClient, long_lease: Settings) -> None:
    """As after an outage that outlasted the lock."""
    turn = await client.enqueue("s", "wait 1")
    async with working(long_lease, agent):
        await shown(client, turn, "tool_call")
        await client.store.server.reply("DEL", TapeKeys(long_lease.namespace, "s").lock)
        async with Tape("s", client.store).fork_tape():
            pass
        result = await client.result(turn, timeout=SOON)
    assert (result.status, result.receipt and result.receipt.attempt) == ("completed", 2)
    assert await crashes(client, long_lease, turn.full_id) == 0


async def test_a_session_that_somebody_goes_on_holding_is_tried_again_after_a_pause(
    client: TurnClient, long_lease: Settings
) -> None:
    """Attempt 1 loses it, attempt 2 finds it held, attempt 3 has to wait."""
    turn = await client.enqueue("s", "wait 1")
    async with working(long_lease, agent):
        await shown(client, turn, "tool_call")
        await client.store.server.reply("DEL", TapeKeys(long_lease.namespace, "s").lock)
        async with Tape("s", client.store).fork_tape():

            async def held() -> bool:
                (waiting,) = await QueueOverview(client.queue).turns_of("s")
                return waiting.attempt > 1 and "is held by" in (waiting.handed_back or "")

            await wait_until(held, "an attempt to find the session held")
            (waiting,) = await QueueOverview(client.queue).turns_of("s")
            assert (waiting.status, waiting.attempt, waiting.crashes) == ("queued", 3, 0)
        assert (await client.result(turn, timeout=SOON)).status == "completed"


async def test_the_turn_behind_a_forced_reset_runs_at_once(client: TurnClient, long_lease: Settings) -> None:
    """What the running one would still merge is refused by the fence, and it gives way."""
    running = await client.enqueue("s", "wait 60")
    async with working(long_lease, agent):
        await shown(client, running, "tool_call")
        behind = await client.enqueue("s", "hello")
        await client.reset("s", force=True)
        assert (await client.result(behind, timeout=SOON)).status == "completed"
    assert (await client.result(running, timeout=SOON)).status == "cancelled"


async def test_a_session_that_was_given_back_is_not_renewed(server: EmbeddedServer, settings: Settings) -> None:
    """Its turn waits for the queue side to take it back; whoever wants the session meanwhile has it."""
    with EmbeddedServer(appendonly=False) as queue_server:
        apart = settings.model_dump(exclude={"redis_url", "tape_url", "home"})
        apart_settings = load_settings(**apart, redis_url=queue_server.url, tape_url=server.url)

        @tool
        def outage() -> str:
            """Have the queue side gone."""
            queue_server.kill()
            return "gone"

        def meet(_: events.ToolCallFinished) -> None:
            raise Outage("no answer")

        meeting = Agent(model=ScriptedModel(lambda r: say("x") if r.tool_results else call("outage")), tools=[outage])
        meeting.events.on(events.ToolCallFinished, meet)
        lock = TapeKeys(settings.namespace, "s").lock
        async with TurnClient(apart_settings) as client, working(apart_settings, meeting):
            await client.enqueue("s", "hello")
            await wait_until(lambda: queue_server.pid is None, "the queue side to be gone")

            async def is_free() -> bool:
                return not await client.store.server.reply("EXISTS", lock)

            await wait_until(is_free, "the session to be given back")
            await asyncio.sleep(2 * settings.beat_s)  # noqa: TID251 - beats of the keeper, which do nothing
            assert await is_free()
            queue_server.start()


async def test_a_turn_that_is_cancelled_between_two_attempts_tells_what_was_asked(
    client: TurnClient, settings: Settings
) -> None:
    """No agent runs any more that would have recorded it."""
    turn = await client.enqueue("s", "die now", turn_id="m1")
    with worker_processes(settings, "tests.redis.agents:agent") as (dying,):
        await asyncio.to_thread(dying.wait)
    assert await client.cancel(turn) == "cancelling"
    async with working(settings, agent):
        assert (await client.result(turn, timeout=SOON)).status == "cancelled"
    entries = await Tape("s", client.store).query().kinds("message").all()
    assert [entry.text for entry in entries] == ["die now"]
