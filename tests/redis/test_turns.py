"""Turns as a web backend sees them: enqueue, follow, result."""

from datetime import timedelta

import pytest

from bub_redis.agent import Agent
from bub_redis.errors import Conflict, InvalidInput, NotFound
from bub_redis.settings import Settings
from bub_redis.storage.keys import QueueKeys
from bub_redis.tape import Tape
from bub_redis.testing import ScriptedModel, fail, say, wait_until
from bub_redis.turns import Frame, Turn, TurnClient
from tests.redis.agents import agent
from tests.redis.audit import committed_turns
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
