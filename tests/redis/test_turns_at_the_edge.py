"""Moments at which two things happen to a turn at once, each of which once went wrong."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bub_redis.agent import Agent, events
from bub_redis.errors import Conflict, InvalidInput, Outage, SessionBusy
from bub_redis.settings import Settings, load_settings
from bub_redis.storage.keys import QueueKeys, TapeKeys
from bub_redis.storage.script import Script
from bub_redis.tape import Tape, TapeEntry
from bub_redis.testing import EmbeddedServer, ScriptedModel, call, say, wait_until
from bub_redis.turns import TurnClient
from bub_redis.turns.overview import QueueOverview
from tests.redis.agents import agent
from tests.redis.audit import committed_turns
from tests.redis.frames import shown
from tests.redis.proxy import Proxy, proxied
from tests.redis.workers import kill, start_worker, working

AGENT = "tests.redis.agents:agent"
SOON = timedelta(seconds=20)


@pytest.fixture
async def proxy(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Proxy]:
    async with proxied(server, tmp_path) as wire:
        yield wire


async def crashes(client: TurnClient, settings: Settings, full_id: str) -> int:
    key = QueueKeys(settings.namespace).turn(full_id)
    return int(await client.server.commands.execute_command("HGET", key, "crashes"))


async def test_a_worker_told_to_stop_hands_back_what_it_is_just_starting(
    client: TurnClient, settings: Settings
) -> None:
    """SIGTERM in the middle of a burst: nothing stays charged, and the process leaves at once."""
    worker = start_worker(settings, AGENT)
    try:
        turns = [await client.enqueue(f"s{n}", "wait 5") for n in range(20)]

        async def one_runs() -> bool:
            standing = await client.queue.standing(turns[0])
            return standing is not None and standing.status == "running"

        await wait_until(one_runs, "the first to run")
        worker.terminate()
        assert await asyncio.to_thread(worker.wait, 8) == 0
        standings = [await client.queue.standing(turn) for turn in turns]
        assert {standing.status for standing in standings if standing} == {"queued"}
        assert [await crashes(client, settings, turn.full_id) for turn in turns] == [0] * 20
    finally:
        kill(worker)


async def test_a_lost_reply_to_start_is_no_crash(client: TurnClient, settings: Settings, proxy: Proxy) -> None:
    behind = load_settings(**settings.model_dump(exclude={"redis_url", "home"}), redis_url=proxy.url)
    turn = await client.enqueue("s", "hello", turn_id="m1")
    proxy.lose_reply_to(Script("bub_redis.turns", "start").sha.encode(), 6)
    async with working(behind, agent):
        assert (await client.result(turn, timeout=SOON)).status == "completed"

        async def finished() -> bool:
            standing = await client.queue.standing(turn)
            return standing is not None and standing.status == "completed"

        await wait_until(finished, "the turn to be finished")
    assert await crashes(client, settings, turn.full_id) == 0


@pytest.mark.parametrize("told", ["drain", "cancel"])
async def test_nothing_begins_in_a_turn_that_was_told_to_stop(
    client: TurnClient, settings: Settings, told: str
) -> None:
    """User code that swallows a cancellation; what it did next would be in no journal, and be done again."""
    asking, began = asyncio.Event(), list[str]()

    async def hold(event: events.LLMCallStarted) -> None:
        if not asking.is_set():
            asking.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    def charge() -> str:
        """Take money."""
        began.append("charge")
        return "charged"

    model = ScriptedModel(lambda request: say("done") if request.tool_results else call("charge"))
    swallowing = Agent(model=model, tools=[charge])
    swallowing.events.on(events.LLMCallStarted, hold)
    turn = await client.enqueue("s", "pay")
    async with working(settings, swallowing):
        await asyncio.wait_for(asking.wait(), 10)
        if told == "cancel":
            assert await client.cancel(turn) == "cancelling"
            assert (await client.result(turn, timeout=SOON)).status == "cancelled"
    assert began == []
    if told == "drain":
        async with working(settings, swallowing):
            assert (await client.result(turn, timeout=SOON)).status == "completed"
        assert began == ["charge"]


async def test_a_turn_cancelled_before_its_prompt_was_recorded_tells_it(client: TurnClient, settings: Settings) -> None:
    """A slow hook before the first call of the model."""
    starting = asyncio.Event()

    async def hold(event: events.RunStarted) -> None:
        starting.set()
        await asyncio.Event().wait()

    slow = Agent(model=ScriptedModel(say("never")))
    slow.events.on(events.RunStarted, hold)
    turn = await client.enqueue("s", "hello", turn_id="t1")
    async with working(settings, slow):
        await asyncio.wait_for(starting.wait(), 10)
        await client.cancel(turn)
        assert (await client.result(turn, timeout=SOON)).status == "cancelled"
    assert await committed_turns(client.store, "s", {"t1": "hello"}) == ["t1"]


async def test_a_conflict_of_the_applications_own_fails_the_turn(client: TurnClient, settings: Settings) -> None:
    """It is not handed back, or it would be for ever; a conflict of the fork's own is what the merge refuses."""

    def meddle(_: events.LLMCallStarted) -> None:
        raise Conflict("the application sent a turn twice")

    meddling = Agent(model=ScriptedModel(say("never")))
    meddling.events.on(events.LLMCallStarted, meddle)
    turn = await client.enqueue("s", "hello")
    async with working(settings, meddling):
        result = await client.result(turn, timeout=SOON)
    assert (result.status, result.error) == ("failed", "the application sent a turn twice")


async def test_an_outage_that_a_handler_meets_is_handed_back(client: TurnClient, settings: Settings) -> None:
    """Wherever in the turn a server does not answer, it is no failure of the turn."""
    met: list[str] = []

    def look(event: events.LLMCallStarted) -> None:
        met.append(event.run_id)
        if len(met) == 1:
            raise Outage("no answer")

    looking = Agent(model=ScriptedModel(say("fine")))
    looking.events.on(events.LLMCallStarted, look)
    turn = await client.enqueue("s", "hello", turn_id="m1")
    async with working(settings, looking):
        result = await client.result(turn, timeout=SOON)
    assert (result.status, result.receipt and result.receipt.attempt) == ("completed", 2)
    assert await committed_turns(client.store, "s", {"m1": "hello"}) == ["m1"]


@pytest.mark.parametrize("session", ["x__sidecar_", "x__sidecar", "__sidecar"])
async def test_a_session_cannot_end_in_the_beginning_of_the_marker(client: TurnClient, session: str) -> None:
    """With a sidecar's name behind it, the marker would be found too early, in another session's keys."""
    with pytest.raises(InvalidInput, match="sidecar"):
        await client.enqueue(session, "hello")


async def test_the_end_of_the_text_reaches_followers_of_a_slow_server(
    client: TurnClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is put while earlier frames are on their way is not dropped at the end."""
    run = Script.run

    async def slow_run(script: Script, *args: Any) -> Any:
        if script.name == "frames":
            await asyncio.sleep(0.1)  # noqa: TID251 - a slow server
        return await run(script, *args)

    monkeypatch.setattr(Script, "run", slow_run)
    words = " ".join(f"w{n}" for n in range(30))
    turn = await client.enqueue("s", "hello")
    async with working(settings, Agent(model=ScriptedModel(say(words, delay_s=0.01)))):
        shown = [frame async for frame in client.follow(turn)]
    assert "".join(frame.data["delta"] for frame in shown if frame.type == "text") == words
    assert "gap" not in [frame.type for frame in shown]


async def test_followers_that_come_and_go_see_no_gap(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "slowly " + " ".join("word" for _ in range(15)))
    async with working(settings, agent):
        seen: list[str] = []
        while "finished" not in seen:
            async with aclosing(client.follow(turn)) as frames:
                async for frame in frames:
                    seen.append(frame.type)
                    if frame.type in {"text", "finished"}:
                        break
            if seen.count("text") > 100:
                await client.result(turn, timeout=SOON)
                seen += [frame.type async for frame in client.follow(turn)]
    assert "gap" not in seen


async def test_a_foreign_frame_cannot_stand_in_the_way_of_a_commit(client: TurnClient, settings: Settings) -> None:
    """The highest id there is, written by hand into the frames: the merge is made once all the same."""
    turn = await client.enqueue("s", "hello", turn_id="m1")
    frames = TapeKeys(settings.namespace, "s").frames("m1")
    await client.server.commands.xadd(frames, {"by": "hand"}, id="18446744073709551615-18446744073709551615")
    async with working(settings, agent):
        key = QueueKeys(settings.namespace).turn(turn.full_id)

        async def ended() -> bool:
            return bool(await client.server.commands.execute_command("HGET", key, "status") == b"completed")

        await wait_until(ended, "the turn to end")
    assert await committed_turns(client.store, "s", {"m1": "hello"}) == ["m1"]


async def test_a_message_is_used_once_also_where_its_turn_fails_at_that_moment(
    client: TurnClient, settings: Settings
) -> None:
    """It stands in the block of the turn, and the receipt says so, so it becomes no turn."""

    def fail(_: events.ChatStarted) -> None:
        raise RuntimeError("a handler's own")

    failing = Agent(model=ScriptedModel(say("never")))
    failing.events.on(events.ChatStarted, fail)
    turn = await client.enqueue("s", "hello")
    await client.steer(turn, "and more", steer_id="x")
    async with working(settings, failing):
        result = await client.result(turn, timeout=SOON)
    assert result.receipt is not None and result.receipt.steers == 1
    said = [entry.text for entry in await Tape("s", client.store).query().kinds("message").all()]
    assert said == ["hello", "and more"]


async def test_a_fork_between_two_attempts_does_not_close_the_turn(client: TurnClient, settings: Settings) -> None:
    """Its journal holds finished calls: a reset that forgot it would have them run again."""
    turn = await client.enqueue("s", "order 7", turn_id="m1")
    dying = start_worker(settings, AGENT, BUB_FAULTS="after-result")
    await wait_until(lambda: dying.poll() is not None, "the worker to die", timeout_s=20)

    async def unlocked() -> bool:
        return not await client.server.commands.exists(TapeKeys(settings.namespace, "s").lock)

    await wait_until(unlocked, "the lock to expire")
    async with Tape("s", client.store).fork_tape() as fork:
        await fork.append(TapeEntry.event("note"))
    with pytest.raises(SessionBusy, match="m1"):
        await client.reset("s")
    async with working(settings, agent):
        assert (await client.result(turn, timeout=SOON)).status == "completed"


@pytest.mark.parametrize("after", ["nonsense", "1", "1-", "-1"])
async def test_an_id_that_no_frame_has_is_refused(client: TurnClient, after: str) -> None:
    turn = await client.enqueue("s", "hello")
    with pytest.raises(InvalidInput, match="frame"):
        _ = [frame async for frame in client.follow(turn, after=after)]


async def test_a_place_that_somebody_made_up_hides_nothing_from_others(client: TurnClient, settings: Settings) -> None:
    """A browser's word for where it was; all followers of a stream share one read."""
    turn = await client.enqueue("s", "slowly a b c")

    async def ahead() -> None:
        async for _ in client.follow(turn, after="9999999999999-0"):
            pass

    odd = asyncio.create_task(ahead())
    try:
        # Its gap is told at once; from then on it reads.
        await asyncio.sleep(0)  # noqa: TID251 - a step of the event loop, not a time
        async with asyncio.timeout(20), working(settings, agent):
            assert [frame.type async for frame in client.follow(turn)][-1] == "finished"
    finally:
        odd.cancel()
        await asyncio.gather(odd, return_exceptions=True)


async def test_nothing_comes_behind_the_last_frame(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "hello")
    async with working(settings, agent):
        *_, last = [frame async for frame in client.follow(turn)]
    assert [frame async for frame in client.follow(turn, after=last.id)] == []


async def test_no_model_is_asked_about_what_is_left_of_a_tape(client: TurnClient, settings: Settings) -> None:
    """Its answer could not be merged, and its tools would have run for nothing; after the repair the turn goes on."""
    model = ScriptedModel(say("first"), say("second"))
    async with working(settings, Agent(model=model)):
        await client.result(await client.enqueue("s", "one"), timeout=SOON)
        await client.server.commands.xadd(TapeKeys(settings.namespace, "s").tape, {"by": "hand"})
        turn = await client.enqueue("s", "two")

        async def blocked() -> bool:
            return [waiting.blocked for waiting in await QueueOverview(client.queue).turns_of("s")] == [True]

        await wait_until(blocked, "the turn to be told as blocked")
        assert len(model.requests) == 1
        await client.store.repair("s")
        assert (await client.result(turn, timeout=SOON)).text == "second"


async def test_a_turn_that_has_ended_is_told_without_waiting(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "hello")
    async with working(settings, agent):
        await client.result(turn, timeout=SOON)
        assert (await client.result(turn, timeout=timedelta(0))).text == "echo: hello"


async def test_an_outage_is_logged_once_by_the_keeper(settings: Settings) -> None:
    """Which asks ten times a second, so as to be the first that is answered again."""
    with EmbeddedServer() as own, capture_logs() as logs:
        behind = settings.model_copy(update={"redis_url": load_settings(redis_url=own.url).redis_url})
        async with TurnClient(behind) as client, working(behind, agent):
            turn = await client.enqueue("s", "wait 2")
            await shown(client, turn, "tool_call")
            own.kill()
            await asyncio.sleep(1.0)  # noqa: TID251 - the outage's own length
            own.start()
            assert (await client.result(turn, timeout=timedelta(seconds=30))).status == "completed"
    assert 1 <= sum(log["event"] == "keeper.no_answer" for log in logs) <= 2
