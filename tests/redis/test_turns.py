"""Turns as a web backend sees them: enqueue, follow, result."""

import asyncio
import gc
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bub_redis.agent import Agent, tool
from bub_redis.errors import Conflict, InvalidInput, NotFound, Outage, SessionBusy
from bub_redis.settings import Settings, load_settings
from bub_redis.storage.keys import QueueKeys
from bub_redis.tape import Tape
from bub_redis.testing import EmbeddedServer, ScriptedModel, call, fail, say, wait_until
from bub_redis.turns import Frame, Turn, TurnClient
from bub_redis.turns.durable import TurnFork
from tests.redis.agents import agent
from tests.redis.audit import committed_turns
from tests.redis.frames import shown
from tests.redis.workers import working

SOON = timedelta(seconds=10)


async def followed(client: TurnClient, turn: Turn, after: str | None = None) -> list[Frame]:
    return [frame async for frame in client.follow(turn, after=after)]


# Enqueue


async def test_a_turn_is_answered_and_on_the_tape(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "hello", turn_id="m1")
    async with working(settings, agent):
        result = await client.result(turn, timeout=SOON)
    assert (result.status, result.text) == ("completed", "echo: hello")
    assert await committed_turns(client.store, "s", {"m1": "hello"}) == ["m1"]


async def test_a_turn_that_has_ended_leaves_nothing_to_the_garbage_collector(
    client: TurnClient, settings: Settings, collector_off: None
) -> None:
    """A cycle would keep the turn's fork, and with it the context that was read, until the collector comes to it."""

    def forks() -> list[object]:
        return [known for known in gc.get_objects() if isinstance(known, TurnFork)]

    async with working(settings, agent):
        for prompt in ("hello", "both 7"):
            await client.result(await client.enqueue("s", prompt), timeout=SOON)
        await wait_until(lambda: not forks(), "no fork is left")


async def test_the_same_id_again_is_the_same_turn(client: TurnClient, settings: Settings) -> None:
    """Case 167, also after it has ended."""
    first = await client.enqueue("s", "hello", turn_id="m1")
    assert await client.enqueue("s", "hello", turn_id="m1") == first
    async with working(settings, agent):
        await client.result(first, timeout=SOON)
        assert await client.enqueue("s", "hello", turn_id="m1") == first
    assert await committed_turns(client.store, "s", {"m1": "hello"}) == ["m1"]


async def test_the_same_id_with_another_prompt_is_a_conflict(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "hello", turn_id="m1")
    with pytest.raises(Conflict, match="m1"):
        await client.enqueue("s", "something else", turn_id="m1")
    async with working(settings, agent):
        assert (await client.result(turn, timeout=SOON)).text == "echo: hello"


async def test_an_id_is_unique_per_session_only(client: TurnClient, settings: Settings) -> None:
    turns = [await client.enqueue(session, session, turn_id="m1") for session in ("a", "b/c", "b%2Fc")]
    async with working(settings, agent):
        results = [await client.result(turn, timeout=SOON) for turn in turns]
    assert [result.text for result in results] == ["echo: a", "echo: b/c", "echo: b%2Fc"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": None},
        {"prompt": b"hi"},
        {"session": 5},
        {"turn_id": 5},
        {"model": 5},
        {"options": "x"},
        {"state": [1]},
        {"metadata": 1},
    ],
    ids=str,
)
async def test_what_is_of_another_type_is_refused(client: TurnClient, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="must be"):
        await client.enqueue(**{"session": "s", "prompt": "hi"} | wrong)


@pytest.mark.parametrize(
    ("session", "prompt", "turn_id"),
    [
        ("", "hi", "m"),
        ("s", "", "m"),
        ("s", " \n", "m"),
        ("s", "hi", "m~2"),
        ("s", "hi", ""),
        ("s__sidecar__x", "hi", "m"),
    ],
)
async def test_what_can_never_work_is_refused(client: TurnClient, session: str, prompt: str, turn_id: str) -> None:
    with pytest.raises(InvalidInput):
        await client.enqueue(session, prompt, turn_id=turn_id)
    assert await client.queue.claim(10) == []


async def test_a_prompt_that_is_too_large_is_refused_with_the_numbers(client: TurnClient) -> None:
    with pytest.raises(InvalidInput, match=r"\d{7} bytes; at most 1048576"):
        await client.enqueue("s", "x" * 2_000_000)


async def test_turns_of_a_session_run_in_order(client: TurnClient, settings: Settings) -> None:
    """Case 179: one at a time, as enqueued, each seeing what the ones before it said."""
    prompts = {f"m{n}": f"number {n}" for n in range(8)}
    turns = [await client.enqueue("s", prompt, turn_id=turn_id) for turn_id, prompt in prompts.items()]
    async with working(settings, agent), working(settings, agent):
        for turn in turns:
            await client.result(turn, timeout=SOON)
    assert await committed_turns(client.store, "s", prompts) == list(prompts)


async def test_a_busy_session_holds_no_place_on_the_worker(client: TurnClient, settings: Settings) -> None:
    """One slot, a session whose lock a library fork holds, and another session that goes on."""
    one_slot = settings.model_copy(update={"max_jobs": 1})
    async with Tape("busy", client.store).fork_tape(), working(one_slot, agent):
        waiting = await client.enqueue("busy", "hello")
        other = await client.enqueue("other", "hello")
        assert (await client.result(other, timeout=SOON)).status == "completed"
    async with working(one_slot, agent):
        assert (await client.result(waiting, timeout=SOON)).status == "completed"


async def test_options_state_and_metadata_travel(client: TurnClient, settings: Settings) -> None:
    model = ScriptedModel(say("ok"))
    turn = await client.enqueue("s", "hi", options={"temperature": 0}, metadata={"source": "web"})
    async with working(settings, Agent(model=model)):
        await client.result(turn, timeout=SOON)
    assert model.requests[0].options["temperature"] == 0
    start = (await Tape("s", client.store).query().kinds("event").all())[1]
    assert (start.payload["name"], start.payload["data"]["source"]) == ("loop.start", "web")


# Follow


async def test_text_arrives_in_pieces_and_ends_with_finished(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "slowly one two three")
    async with working(settings, agent):
        frames = await followed(client, turn)
    kinds = [frame.type for frame in frames]
    assert kinds[:2] == ["queued", "started"]
    assert kinds[-1] == "finished"
    deltas = [frame.data["delta"] for frame in frames if frame.type == "text"]
    assert len(deltas) == 3
    assert "".join(deltas) == "one two three"


async def test_finished_names_the_entries(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "order 7")
    async with working(settings, agent):
        finished = (await followed(client, turn))[-1].data
    entries = {entry.id: entry for entry in await Tape("s", client.store).query().all()}
    assert finished["status"] == "completed"
    assert entries[finished["last"]].payload["name"] == "turn.receipt"
    assert entries[finished["answer"]].text.startswith("done:")
    assert entries[finished["first"]].payload["name"] == "loop.start"


async def test_a_follower_resumes_behind_any_frame(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "order 7")
    async with working(settings, agent):
        frames = await followed(client, turn)
    streamed = [frame for frame in frames if frame.type != "queued"]
    for place, frame in enumerate(streamed[:-1]):
        assert await followed(client, turn, after=frame.id) == streamed[place + 1 :]


async def test_a_follower_behind_a_lost_frame_sees_a_gap(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "order 7")
    async with working(settings, agent):
        frames = await followed(client, turn)
    assert [frame.type for frame in await followed(client, turn, after="1-1")][:2] == ["gap", "started"]
    assert frames[-1] == (await followed(client, turn, after="1-1"))[-1]


async def test_an_ended_turn_without_frames_is_told_from_the_tape(client: TurnClient, settings: Settings) -> None:
    short = settings.model_copy(update={"frames_ttl_s": 0.05})
    turn = await client.enqueue("s", "hello")
    async with working(short, agent):
        await client.result(turn, timeout=SOON)

        async def no_frames() -> bool:
            pattern = f"{settings.namespace}:*:frames:*"
            return not [key async for key in client.server.commands.scan_iter(pattern)]

        await wait_until(no_frames, "the frames to expire")
    (finished,) = await followed(client, turn)
    assert (finished.type, finished.data["status"]) == ("finished", "completed")


async def test_a_waiting_turn_tells_its_place(client: TurnClient) -> None:
    await client.enqueue("s", "first")
    second = await client.enqueue("s", "second")
    frames = client.follow(second)
    assert (await anext(frames)).data == {"place": 1}
    await frames.aclose()


async def test_an_unknown_turn_is_not_found(client: TurnClient) -> None:
    with pytest.raises(NotFound, match="nothing"):
        await followed(client, client.turn("s", "nothing"))


async def test_a_result_that_does_not_come_in_time_is_a_timeout(client: TurnClient) -> None:
    turn = await client.enqueue("s", "hello")
    with pytest.raises(TimeoutError, match="goes on"):
        await client.result(turn, timeout=timedelta(seconds=0.05))


# Ends


async def test_a_failed_model_call_fails_the_turn_and_the_session_goes_on(
    client: TurnClient, settings: Settings
) -> None:
    """Case 128: the prompt is on the tape all the same."""
    model = ScriptedModel(fail(400, "no such thing"), say("fine"))
    first = await client.enqueue("s", "one", turn_id="m1")
    second = await client.enqueue("s", "two", turn_id="m2")
    async with working(settings, Agent(model=model)):
        failed = await client.result(first, timeout=SOON)
        assert (await client.result(second, timeout=SOON)).text == "fine"
    assert failed.status == "failed"
    assert "no such thing" in (failed.error or "")
    assert await committed_turns(client.store, "s", {"m1": "one", "m2": "two"}) == ["m1", "m2"]


async def test_an_ended_turn_leaves_no_content_with_the_queue(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "secret words", state={"k": "v"})
    key = QueueKeys(settings.namespace).turn(turn.full_id)
    async with working(settings, agent):
        await client.result(turn, timeout=SOON)

        async def ended() -> bool:
            return bool(await client.server.commands.execute_command("HGET", key, "status") == b"completed")

        await wait_until(ended, "the turn to be finished")
    fields = set(await client.server.commands.execute_command("HKEYS", key))
    assert fields.isdisjoint({b"prompt", b"options", b"state", b"body"})
    assert b"digest" in fields


# Cancel


async def test_a_cancelled_waiting_turn_leaves_nothing_on_the_tape(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "hello")
    assert await client.cancel(turn) == "cancelled"
    result = await client.result(turn, timeout=SOON)
    assert (result.status, result.receipt) == ("cancelled", None)
    async with working(settings, agent):
        await client.result(await client.enqueue("s", "next", turn_id="m2"), timeout=SOON)
    assert await committed_turns(client.store, "s", {"m2": "next"}) == ["m2"]


@pytest.mark.parametrize(
    ("prompt", "moment"), [("slowly one two three four five six", "text"), ("wait 60", "tool_call")]
)
async def test_a_cancelled_running_turn_is_on_the_tape_closed(
    client: TurnClient, settings: Settings, prompt: str, moment: str
) -> None:
    """In the middle of the text, and in the middle of a tool: at once, not at the next beat."""
    slow_beat = settings.model_copy(update={"lease_s": 60.0, "beat_s": 20.0})
    turn = await client.enqueue("s", prompt, turn_id="m1")
    async with working(slow_beat, agent):
        await shown(client, turn, moment)
        assert await client.cancel(turn) == "cancelling"
        assert await client.cancel(turn) in {"cancelling", "cancelled"}
        result = await client.result(turn, timeout=SOON)
        after = await client.result(await client.enqueue("s", "next", turn_id="m2"), timeout=SOON)
    assert (result.status, after.status) == ("cancelled", "completed")
    assert await committed_turns(client.store, "s", {"m1": prompt, "m2": "next"}) == ["m1", "m2"]


async def test_a_cancel_that_comes_too_late_says_how_the_turn_ended(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "hello")
    async with working(settings, agent):
        await client.result(turn, timeout=SOON)

        async def ended() -> bool:
            return await client.cancel(turn) == "completed"

        await wait_until(ended, "the turn to be finished")


# Many followers


async def test_any_number_of_followers_share_one_blocked_read(client: TurnClient, settings: Settings) -> None:
    """Also those that come in the middle, and those that follow other turns."""
    turns = [await client.enqueue(f"s{n}", "slowly one two three four five") for n in range(5)]
    async with working(settings, agent):
        followers = [asyncio.create_task(followed(client, turn)) for turn in turns for _ in range(20)]
        await shown(client, turns[0], "text")
        followers += [asyncio.create_task(followed(client, turns[0])) for _ in range(20)]
        blocked = await client.server.commands.client_list()
        seen = [[f for f in frames if f.type != "queued"] for frames in await asyncio.gather(*followers)]
    assert sum(connection["cmd"] == "xread" for connection in blocked) <= 1
    for place, turn in enumerate(turns):
        assert all(frames == seen[place * 20] for frames in seen[place * 20 : place * 20 + 20]), turn
    assert all(frames == seen[0] for frames in seen[-20:])


async def test_a_follower_of_a_stopped_server_hears_of_the_outage(tmp_path: Path) -> None:
    with EmbeddedServer(data_dir=tmp_path) as own:
        async with TurnClient(load_settings(redis_url=own.url)) as client:
            turn = await client.enqueue("s", "hello")
            with pytest.raises(Outage):
                async for _ in client.follow(turn):
                    own.kill()


async def test_a_follower_outlives_a_server_that_changes_its_role(tmp_path: Path) -> None:
    """A replica for a moment, as a fail-over makes of a primary: it ends blocked reads with an error of its own."""
    with EmbeddedServer(data_dir=tmp_path) as own:
        settings = load_settings(redis_url=own.url, reconcile_s=0.05)
        async with TurnClient(settings) as client:
            turn = await client.enqueue("s", "hello")
            following = asyncio.create_task(client.result(turn, timeout=SOON))

            async def blocked() -> bool:
                return any(one["cmd"] == "xread" for one in await client.server.commands.client_list())

            await wait_until(blocked, "the follower to wait")
            for role in (("127.0.0.1", "1"), ("NO", "ONE")):
                await client.server.commands.execute_command("REPLICAOF", *role)
            async with working(settings, agent):
                assert (await following).text == "echo: hello"


# Steering


async def test_a_message_under_the_id_of_a_turn_is_a_conflict(client: TurnClient) -> None:
    """Also with the text of that turn: it was not sent into this one, and nothing would say that it never enters."""
    first, second = [await client.enqueue("s", "hi", turn_id=turn_id) for turn_id in ("m1", "m2")]
    for steer_id in ("m1", "m2"):
        with pytest.raises(Conflict, match=steer_id):
            await client.steer(first, "hi", steer_id=steer_id)
    assert await client.steer(first, "hi", steer_id="x") is None
    assert await client.cancel(second) == "cancelled"


async def test_a_message_enters_before_the_next_model_call(client: TurnClient, settings: Settings) -> None:
    """From any host, while a tool runs: the turn's block holds it, and it becomes no turn."""
    turn = await client.enqueue("s", "wait 1", turn_id="m1")
    async with working(settings, agent):
        await shown(client, turn, "tool_call")
        assert await client.steer(turn, "hello there", steer_id="x") is None
        assert await client.steer(turn, "hello there", steer_id="x") is None
        kinds = [frame.type async for frame in client.follow(turn)]
        result = await client.result(turn, timeout=SOON)
    assert "steered" in kinds
    assert result.text == "echo: hello there"
    assert result.receipt is not None and result.receipt.steers == 1
    steered = [e for e in await Tape("s", client.store).query().kinds("message").all() if e.meta.get("steer") == "x"]
    assert [entry.text for entry in steered] == ["hello there"]


async def test_a_message_can_be_taken_back_before_the_next_model_call(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "wait 1", turn_id="m1")
    async with working(settings, agent):
        await shown(client, turn, "tool_call")
        assert await client.steer(turn, "hello there", steer_id="x") is None
        message = client.turn("s", "x")
        assert await client.cancel(message) == "cancelling"
        result, taken_back = [await client.result(each, timeout=SOON) for each in (turn, message)]
    assert result.receipt is not None and result.receipt.steers == 0
    assert (taken_back.status, taken_back.receipt) == ("cancelled", None)
    assert await committed_turns(client.store, "s", {"m1": "wait 1"}) == ["m1"]


async def test_a_message_for_an_ended_turn_is_the_next_turn(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "hello", turn_id="m1")
    async with working(settings, agent):
        await client.result(turn, timeout=SOON)

        async def ended() -> bool:
            return await client.cancel(turn) == "completed"

        await wait_until(ended, "the turn to be finished")
        own = await client.steer(turn, "and more", steer_id="x")
        assert own is not None
        assert (await client.result(own, timeout=SOON)).text == "echo: and more"
    assert await committed_turns(client.store, "s", {"m1": "hello", "x": "and more"}) == ["m1", "x"]


# Reset and delete


async def test_a_reset_tape_begins_anew_and_turns_go_on(client: TurnClient, settings: Settings) -> None:
    async with working(settings, agent):
        await client.result(await client.enqueue("s", "hello", turn_id="m1"), timeout=SOON)
        await client.reset("s")
        after = await client.result(await client.enqueue("s", "again", turn_id="m2"), timeout=SOON)
    entries = await Tape("s", client.store).query().all()
    assert (entries[0].id, entries[0].anchor_name) == (1, "session/start")
    assert [entry.text for entry in entries if entry.kind == "message"] == ["again", "echo: again"]
    assert after.status == "completed"


async def test_a_forced_reset_ends_the_running_turn_without_a_trace_of_it(
    client: TurnClient, settings: Settings
) -> None:
    """Its receipt says cancelled; what it did belonged to the tape that is gone."""
    turn = await client.enqueue("s", "wait 60", turn_id="m1")
    async with working(settings, agent):
        await shown(client, turn, "tool_call")
        with pytest.raises(SessionBusy, match="m1"):
            await client.reset("s")
        await client.reset("s", force=True)
        result = await client.result(turn, timeout=SOON)
        await client.result(await client.enqueue("s", "next", turn_id="m2"), timeout=SOON)
    assert result.status == "cancelled"
    calls = await Tape("s", client.store).query().kinds("tool_call").all()
    assert calls == []


async def test_a_deleted_session_leaves_no_key(client: TurnClient, settings: Settings) -> None:
    """Case 146. Refused while a turn waits."""
    waiting = await client.enqueue("gone", "hello", turn_id="m1")
    with pytest.raises(SessionBusy, match="m1"):
        await client.delete("gone")
    async with working(settings, agent):
        await client.result(waiting, timeout=SOON)

        async def deleted() -> bool:
            try:
                await client.delete("gone")
            except SessionBusy:
                return False
            return True

        await wait_until(deleted, "the turn to be finished and the session deleted")
    keys = [key.decode() async for key in client.server.commands.scan_iter(f"{settings.namespace}:*")]
    assert [key for key in keys if "gone" in key] == []


# Large results


async def test_a_workers_large_results_stay_out_of_the_tape(client: TurnClient, settings: Settings) -> None:
    """Case 18: the worker mounts the spill sidecar; the model sees a preview and a handle."""

    @tool
    def dump() -> str:
        """Print everything."""
        return "x" * 2_000_000

    model = ScriptedModel(call("dump"), say("seen"))
    turn = await client.enqueue("s", "hello", turn_id="m1")
    async with working(settings, Agent(model=model, tools=[dump])):
        result = await client.result(turn, timeout=SOON)
    assert result.text == "seen"
    entries = await Tape("s", client.store).query().all()
    assert sum(entry.encode().size_bytes for entry in entries) < 20_000
    assert len(str(model.requests[1].messages)) < 20_000


async def test_a_turn_that_fails_before_its_run_begins_tells_what_was_asked(
    client: TurnClient, settings: Settings
) -> None:
    """Case 128, for what is wrong before the first model call."""
    turn = await client.enqueue("s", "hello", turn_id="m1", model="nowhere:model")
    async with working(settings, agent):
        result = await client.result(turn, timeout=SOON)
    assert result.status == "failed"
    kinds = [entry.kind for entry in await Tape("s", client.store).query().kinds("message", "error").all()]
    assert kinds == ["message", "error"]
    assert await committed_turns(client.store, "s", {"m1": "hello"}) == ["m1"]


async def test_a_failing_tool_of_the_application_is_the_turns_own_end(client: TurnClient, settings: Settings) -> None:
    """What user code raises outside a tool fails the turn with its words, and the worker goes on."""

    def broken(_: object) -> str:
        raise KeyError("the application's own bug")

    turn = await client.enqueue("s", "hello", turn_id="m1")
    async with working(settings, Agent(model=ScriptedModel(say("never")), system_prompt=broken)):
        result = await client.result(turn, timeout=SOON)
    assert (result.status, result.error) == ("failed", 'KeyError: "the application\'s own bug"')
