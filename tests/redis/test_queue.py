"""The queue side by itself: who may run what, and what happens to a turn that nobody looks after."""

import secrets
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from bub_redis.errors import ErrorKind, NotFound, QueueFull
from bub_redis.settings import Settings
from bub_redis.storage import RedisServer
from bub_redis.storage.keys import QueueKeys
from bub_redis.testing import wait_until
from bub_redis.turns import Turn
from bub_redis.turns.attempt import Attempt, Beat, Started
from bub_redis.turns.overview import QueueOverview
from bub_redis.turns.queue import TurnQueue
from bub_redis.turns.record import Request


@pytest.fixture
async def queue(settings: Settings) -> AsyncIterator[TurnQueue]:
    async with RedisServer(settings.queue_address) as server:
        yield TurnQueue(server, settings)


def request(session: str = "s", turn_id: str | None = None) -> Request:
    return Request(Turn(session, session, turn_id or secrets.token_hex(4)), "hello")


async def claimed(queue: TurnQueue, worker: str = "w") -> Attempt:
    (job,) = await queue.claim(1)
    return Attempt.of_job(job, queue.namespace, worker)


async def finish(queue: TurnQueue, turn: Turn) -> None:
    await queue.finish(turn, receipt_id="1-1", digest="d", status="completed", result=b"{}")


async def test_only_the_head_of_a_session_can_be_claimed(queue: TurnQueue) -> None:
    for _ in range(3):
        await queue.enqueue(request("a"))
    await queue.enqueue(request("b"))
    assert len(await queue.claim(10)) == 2
    assert await queue.claim(10) == []


async def test_finish_dispatches_the_next_of_the_session(queue: TurnQueue) -> None:
    first, second = request(), request()
    await queue.enqueue(first)
    await queue.enqueue(second)
    assert await queue.start(await claimed(queue))
    await finish(queue, first.turn)
    assert (await claimed(queue)).full_id == second.turn.full_id


async def test_finish_may_be_repeated(queue: TurnQueue) -> None:
    """A lost reply: nothing is dispatched twice, no turn is skipped."""
    requests = [request() for _ in range(3)]
    for each in requests:
        await queue.enqueue(each)
    assert await queue.start(await claimed(queue))
    for _ in range(3):
        await finish(queue, requests[0].turn)
    standing = [await queue.standing(each.turn) for each in requests]
    assert [(s.status, s.place) for s in standing if s] == [("completed", None), ("queued", 0), ("queued", 1)]
    assert len(await queue.claim(10)) == 1


async def test_a_start_is_given_once_and_again_to_the_same_worker_only(queue: TurnQueue) -> None:
    await queue.enqueue(request())
    attempt = await claimed(queue, "one")
    first = await queue.start(attempt)
    assert first is not None
    assert await queue.start(attempt) == first
    assert await queue.start(Attempt(attempt.full_id, attempt.number, "two")) is None


async def test_a_job_of_an_old_attempt_cannot_start(queue: TurnQueue) -> None:
    await queue.enqueue(request())
    old = await claimed(queue)
    assert await queue.start(old)
    assert await queue.hand_back(old, pause_s=0, reason="test")
    new = await claimed(queue)
    assert new.number == old.number + 1
    assert await queue.start(old) is None
    assert await queue.start(new)


async def test_a_hand_back_is_uncharged_and_pauses(queue: TurnQueue, settings: Settings) -> None:
    each = request()
    await queue.enqueue(each)
    attempt = await claimed(queue)
    await queue.start(attempt)
    assert await queue.hand_back(attempt, pause_s=0.1, reason="an outage")
    assert await queue.claim(1) == []
    key = QueueKeys(settings.namespace).turn(each.turn.full_id)
    assert await queue.server.commands.execute_command("HMGET", key, "crashes", "handbacks") == [b"0", b"1"]

    async def due() -> bool:
        return bool(await queue.claim(1))

    await wait_until(due, "the pause to end")


async def test_a_tape_is_blocked_by_the_kind_of_the_error_and_not_by_its_words(queue: TurnQueue) -> None:
    overview = QueueOverview(queue)
    await queue.enqueue(request())
    told = []
    for reason, kind in [
        ("a tool named `bub-redis tape repair`", "temporary"),
        ("the tape refuses", ErrorKind.BLOCKED),
    ]:
        attempt = await claimed(queue)
        await queue.start(attempt)
        await queue.hand_back(attempt, pause_s=0, reason=reason, kind=kind)
        (turn,) = await overview.turns_of("s")
        told.append((turn.handed_back, turn.blocked))
    assert told == [("a tool named `bub-redis tape repair`", False), ("the tape refuses", True)]


async def test_the_reason_of_a_hand_back_is_gone_once_the_next_attempt_starts(queue: TurnQueue) -> None:
    """What was in the way is not any more; a worker that dies then hands nothing back."""
    await queue.enqueue(request())
    attempt = await claimed(queue)
    await queue.start(attempt)
    await queue.hand_back(attempt, pause_s=0, reason="the tape refuses", kind=ErrorKind.BLOCKED)
    assert await crash(queue)
    (turn,) = await QueueOverview(queue).turns_of("s")
    assert (turn.status, turn.handed_back, turn.blocked) == ("queued", None, False)


async def test_a_hand_back_may_be_repeated(queue: TurnQueue) -> None:
    await queue.enqueue(request())
    attempt = await claimed(queue)
    await queue.start(attempt)
    assert await queue.hand_back(attempt, pause_s=0, reason="test")
    assert not await queue.hand_back(attempt, pause_s=0, reason="test")
    assert len(await queue.claim(10)) == 1


async def test_a_lost_claim_is_dispatched_again(queue: TurnQueue) -> None:
    """The job is out of arq's queue, and no worker ever started it."""
    await queue.enqueue(request())
    lost = await claimed(queue)

    async def again() -> bool:
        return ("redispatched", lost.full_id) in await queue.reconcile()

    await wait_until(again, "the reconciler to dispatch it again")
    assert (await claimed(queue)).number == lost.number + 1


async def test_a_turn_that_waits_for_a_worker_stays_the_same_attempt(queue: TurnQueue, settings: Settings) -> None:
    """All workers are busy: the deadline is moved, ever further, and nothing is dispatched twice."""
    each = request()
    await queue.enqueue(each)

    async def rearmed() -> bool:
        return ("rearmed", each.turn.full_id) in await queue.reconcile()

    await wait_until(rearmed, "the waiting head to be looked at")
    key = QueueKeys(settings.namespace).turn(each.turn.full_id)
    grace = await queue.server.commands.execute_command("HGET", key, "grace")
    assert int(grace) == int(settings.waiting_grace_s * 2000)
    assert (await claimed(queue)).number == 1


async def test_a_lease_that_nobody_renews_is_marked_then_dispatched_again(queue: TurnQueue) -> None:
    await queue.enqueue(request())
    attempt = await claimed(queue)
    await queue.start(attempt)

    async def again() -> bool:
        return ("redispatched", attempt.full_id) in await queue.reconcile()

    await wait_until(again, "the reconciler to dispatch it again")
    assert await queue.beat([attempt], attempt.worker) == [Beat.LOST]
    next_attempt = await claimed(queue)
    started = await queue.start(next_attempt)
    assert started is not None and started.attempt.number == 2


async def test_a_beat_after_an_outage_saves_an_overdue_lease(queue: TurnQueue, settings: Settings) -> None:
    await queue.enqueue(request())
    attempt = await claimed(queue)
    await queue.start(attempt)
    key = QueueKeys(settings.namespace).turn(attempt.full_id)

    async def marked() -> bool:
        assert await queue.reconcile() == []
        return bool(await queue.server.commands.execute_command("HEXISTS", key, "overdue"))

    await wait_until(marked, "the lease to be overdue")
    assert await queue.beat([attempt], attempt.worker) == [Beat.HELD]
    assert not await queue.server.commands.execute_command("HEXISTS", key, "overdue")
    assert await queue.reconcile() == []


async def test_a_turn_whose_hash_is_gone_does_not_block_its_session(queue: TurnQueue, settings: Settings) -> None:
    """A hand, or an eviction that should not be: the reconciler goes on with the next."""
    first, second = request(), request()
    await queue.enqueue(first)
    await queue.enqueue(second)
    await queue.server.commands.delete(QueueKeys(settings.namespace).turn(first.turn.full_id))

    async def gone() -> bool:
        return ("gone", first.turn.full_id) in await queue.reconcile()

    await wait_until(gone, "the reconciler to notice")
    jobs = await queue.claim(10)
    assert Attempt.of_job(jobs[-1], queue.namespace, "w").full_id == second.turn.full_id


# Bounds


async def test_a_sessions_open_turns_are_bounded_with_the_numbers(settings: Settings) -> None:
    async with RedisServer(settings.queue_address) as server:
        queue = TurnQueue(server, settings.model_copy(update={"max_session_turns": 2}))
        await queue.enqueue(request())
        await queue.enqueue(request())
        with pytest.raises(QueueFull, match=r"2 turns .* at most 2"):
            await queue.enqueue(request())
        assert await queue.enqueue(request("another"))


async def test_open_turns_in_all_are_bounded_and_ended_ones_make_room(settings: Settings) -> None:
    async with RedisServer(settings.queue_address) as server:
        queue = TurnQueue(server, settings.model_copy(update={"max_open_turns": 2}))
        first = request("a")
        await queue.enqueue(first)
        await queue.enqueue(request("b"))
        with pytest.raises(QueueFull, match="at most 2"):
            await queue.enqueue(request("c"))
        await queue.cancel(first.turn)
        assert await queue.enqueue(request("c"))


# Cancel


async def test_a_turn_that_never_started_is_cancelled_at_once(queue: TurnQueue) -> None:
    first, second = request(), request()
    await queue.enqueue(first)
    await queue.enqueue(second)
    attempt = await claimed(queue)
    assert await queue.cancel(first.turn) == "cancelled"
    assert await queue.start(attempt) is None
    assert await queue.cancel(first.turn) == "cancelled"
    assert (await claimed(queue)).full_id == second.turn.full_id


async def test_a_running_turn_is_told_at_its_next_beat(queue: TurnQueue) -> None:
    each = request()
    await queue.enqueue(each)
    attempt = await claimed(queue)
    await queue.start(attempt)
    assert await queue.cancel(each.turn) == "cancelling"
    assert await queue.beat([attempt], attempt.worker) == [Beat.CANCEL]


async def test_a_turn_between_two_attempts_gets_a_closing_one(queue: TurnQueue) -> None:
    each = request()
    await queue.enqueue(each)
    attempt = await claimed(queue)
    await queue.start(attempt)
    await queue.hand_back(attempt, pause_s=60, reason="an outage")
    assert await queue.cancel(each.turn) == "cancelling"
    started = await queue.start(await claimed(queue))
    assert started is not None and started.closing == "cancelled"


async def test_an_ended_turn_says_how_it_ended(queue: TurnQueue) -> None:
    each = request()
    await queue.enqueue(each)
    await queue.start(await claimed(queue))
    await finish(queue, each.turn)
    assert await queue.cancel(each.turn) == "completed"


async def test_an_unknown_turn_cannot_be_cancelled(queue: TurnQueue) -> None:
    with pytest.raises(NotFound):
        await queue.cancel(request().turn)


# Crashes


async def crash(queue: TurnQueue, *, take_suspects: bool = True) -> Started | None:
    """Start the next attempt and let its lease run out."""
    started = await queue.start(await claimed(queue), take_suspects=take_suspects)
    if started:

        async def found() -> bool:
            return bool(await queue.reconcile())

        await wait_until(found, "the reconciler to find it")
    return started


async def test_over_the_cap_the_next_attempt_is_a_closing_one(queue: TurnQueue, settings: Settings) -> None:
    await queue.enqueue(request())
    started = [await crash(queue) for _ in range(settings.max_crashes)]
    assert [s.closing for s in started if s] == ["", "", ""]
    assert [s.suspect for s in started if s] == [False, False, True]
    for _ in range(2):
        closing = await crash(queue)
        assert closing is not None and closing.closing == "crashed"


async def test_a_worker_takes_one_suspect_at_a_time(queue: TurnQueue) -> None:
    await queue.enqueue(request())
    for _ in range(2):
        assert await crash(queue)
    assert await queue.start(await claimed(queue), take_suspects=False) is None

    async def due() -> bool:
        jobs = await queue.claim(1)
        return bool(jobs) and await queue.start(Attempt.of_job(jobs[0], queue.namespace, "other")) is not None

    await wait_until(due, "another worker to take it")


async def test_a_dead_turn_counts_as_long_as_it_is_kept(queue: TurnQueue, settings: Settings) -> None:
    """By the server's clock, and whether or not another turn has died since."""
    overview = QueueOverview(queue)
    await queue.enqueue(dying := request())
    for _ in range(settings.max_crashes + 1):
        await crash(queue)
    await queue.finish(dying.turn, receipt_id="1-1", digest="d", status="failed", result=b"{}")
    assert ((await overview.counts()).dead, [one.request.turn for one in await overview.dead(10)]) == (1, [dying.turn])
    died_ms = (await overview.dead(10))[0].died_ms
    week_ms = int(timedelta(days=7).total_seconds() * 1000)
    await queue.server.commands.zadd(QueueKeys(settings.namespace).dead, {dying.turn.full_id: died_ms - week_ms})
    assert ((await overview.counts()).dead, await overview.dead(10)) == (0, [])


async def test_a_turn_that_was_kept_by_half_is_made_whole_by_sending_it_again(queue: TurnQueue) -> None:
    """A user without the right to one of the keys: the script that puts it on its list stops in the middle."""
    half = request()
    await queue.enqueue(half)
    keys = QueueKeys(queue.namespace)
    job = await claimed(queue)
    await queue.server.commands.delete(keys.queue("s"), keys.waiting)
    assert not await queue.enqueue(half)
    again = await claimed(queue)
    assert (again.full_id, again.number) == (job.full_id, job.number + 1)


async def test_a_count_that_was_lost_begins_again_at_none(queue: TurnQueue) -> None:
    """Below none, the bound on open turns would be off by so many for good."""
    first = request()
    await queue.enqueue(first)
    await queue.start(await claimed(queue))
    await queue.server.commands.delete(QueueKeys(queue.namespace).open_turns)
    await finish(queue, first.turn)
    assert await queue.server.commands.get(QueueKeys(queue.namespace).open_turns) == b"0"


# Steering


async def test_a_message_goes_to_an_open_turn_in_order(queue: TurnQueue) -> None:
    target = request()
    await queue.enqueue(target)
    for text in ("one", "two"):
        assert await queue.steer(target.turn, Request(Turn("s", "s", text), text))
    assert [(steer.id, steer.prompt) for steer in await queue.steers(target.turn)] == [("one", "one"), ("two", "two")]


async def test_a_message_that_was_lost_hides_no_other(queue: TurnQueue) -> None:
    target = request()
    await queue.enqueue(target)
    for text in ("one", "two"):
        assert await queue.steer(target.turn, Request(Turn("s", "s", text), text))
    await queue.server.commands.delete(QueueKeys(queue.namespace).turn("s/one"))
    assert [steer.id for steer in await queue.steers(target.turn)] == ["two"]


async def test_the_same_message_again_is_taken_once(queue: TurnQueue) -> None:
    target, message = request(), request(turn_id="again")
    await queue.enqueue(target)
    assert [await queue.steer(target.turn, message) for _ in range(3)] == [True, True, True]
    assert len(await queue.steers(target.turn)) == 1


async def test_a_message_that_was_kept_by_half_is_made_whole_by_sending_it_again(queue: TurnQueue) -> None:
    target, message = request(), request(turn_id="half")
    await queue.enqueue(target)
    await queue.steer(target.turn, message)
    await queue.server.commands.delete(QueueKeys(queue.namespace).steers(target.turn.full_id))
    assert await queue.steer(target.turn, message)
    assert [steer.id for steer in await queue.steers(target.turn)] == ["half"]


async def test_messages_that_were_not_used_become_the_next_turns(queue: TurnQueue) -> None:
    """Before all that wait in the session, in their order; a used one is known as used."""
    target, later = request(), request()
    messages = [request(turn_id=name) for name in ("used", "late1", "late2")]
    await queue.enqueue(target)
    await queue.enqueue(later)
    await queue.start(await claimed(queue))
    for message in messages:
        await queue.steer(target.turn, message)
    await queue.finish(target.turn, receipt_id="1-1", digest="d", status="completed", result=b"{}", steers=["used"])
    standing = [await queue.standing(each.turn) for each in [*messages, later]]
    assert [s and (s.status, s.place) for s in standing] == [
        ("steered", None),
        ("queued", 0),
        ("queued", 1),
        ("queued", 2),
    ]
    assert (await claimed(queue)).full_id == messages[1].turn.full_id


async def test_a_message_for_an_ended_turn_is_a_turn(queue: TurnQueue) -> None:
    target, message = request(), request(turn_id="late")
    await queue.enqueue(target)
    await queue.start(await claimed(queue))
    await finish(queue, target.turn)
    assert not await queue.steer(target.turn, message)
    assert not await queue.steer(target.turn, message)
    assert (await claimed(queue)).full_id == message.turn.full_id


async def test_messages_of_a_turn_that_never_started_become_turns(queue: TurnQueue) -> None:
    target, message = request(), request(turn_id="kept")
    await queue.enqueue(target)
    await queue.steer(target.turn, message)
    await queue.cancel(target.turn)
    assert (await claimed(queue)).full_id == message.turn.full_id


async def test_a_message_that_was_cancelled_is_not_used_and_becomes_no_turn(queue: TurnQueue) -> None:
    target, kept, dropped = request(), request(turn_id="kept"), request(turn_id="dropped")
    await queue.enqueue(target)
    await queue.start(await claimed(queue))
    for message in (dropped, kept):
        await queue.steer(target.turn, message)
    assert [await queue.cancel(dropped.turn) for _ in range(2)] == ["cancelling", "cancelling"]
    assert [steer.id for steer in await queue.open_steers(target.turn)] == ["kept"]
    await finish(queue, target.turn)
    assert await queue.cancel(dropped.turn) == "cancelled"
    assert (await claimed(queue)).full_id == kept.turn.full_id


async def test_a_message_that_was_cancelled_too_late_is_known_as_used(queue: TurnQueue) -> None:
    target, message = request(), request(turn_id="used")
    await queue.enqueue(target)
    await queue.start(await claimed(queue))
    await queue.steer(target.turn, message)
    await queue.cancel(message.turn)
    await queue.finish(target.turn, receipt_id="1-1", digest="d", status="completed", result=b"{}", steers=["used"])
    assert await queue.cancel(message.turn) == "steered"


async def test_messages_of_a_waiting_turn_take_its_place_when_it_is_cancelled(queue: TurnQueue) -> None:
    """Not the head's: one turn of a session at a time."""
    running, cancelled, message, last = (request(turn_id=name) for name in ("a", "b", "steer", "c"))
    for each in (running, cancelled, last):
        await queue.enqueue(each)
    await queue.start(await claimed(queue))
    await queue.steer(cancelled.turn, message)
    assert await queue.cancel(cancelled.turn) == "cancelled"
    assert await queue.claim(10) == []
    standing = [await queue.standing(each.turn) for each in (running, message, last)]
    assert [s and s.place for s in standing] == [0, 1, 2]


async def test_with_a_cap_of_one_crash_no_healthy_turn_is_a_suspect(settings: Settings) -> None:
    async with RedisServer(settings.queue_address) as server:
        queue = TurnQueue(server, settings.model_copy(update={"max_crashes": 1}))
        await queue.enqueue(request())
        started = await queue.start(await claimed(queue), take_suspects=False)
    assert started is not None and not started.suspect


async def test_a_deadline_far_ahead_is_brought_back(queue: TurnQueue, settings: Settings) -> None:
    """A clock that was set back: heads could not be claimed, and dead workers not be noticed, until it catches up."""
    await queue.enqueue(request())
    keys = QueueKeys(settings.namespace)
    (job,) = await queue.server.commands.zrange(keys.arq, 0, -1)
    far = (time.time_ns() // 1_000_000) + 86_400_000
    await queue.server.commands.zadd(keys.arq, {job: far})
    assert await queue.claim(1) == []
    await queue.reconcile()
    assert len(await queue.claim(1)) == 1


async def test_a_late_finish_does_not_move_the_last_receipt_back(queue: TurnQueue, settings: Settings) -> None:
    turns = [request(turn_id=name).turn for name in ("a", "b")]
    for receipt, turn in zip(("7-20", "7-9"), turns, strict=True):
        await queue.finish(turn, receipt_id=receipt, digest="d", status="completed", result=b"{}")
    key = QueueKeys(settings.namespace).receipt_prefix + "s"
    assert await queue.server.commands.execute_command("HGET", key, "id") == b"7-20"


async def test_a_turn_whose_hash_is_foreign_is_named_by_its_id(queue: TurnQueue) -> None:
    """The reconciler logs it and goes on."""
    key = QueueKeys(queue.namespace).turn("a%2Fb/t")
    await queue.server.reply("HSET", key, "session", "a/b", "id", "t", "attempt", "many")
    assert await QueueOverview(queue).named(["a%2Fb/t", "c/gone"]) == [
        {"session": "a/b", "turn": "t"},
        {"session": "c", "turn": "gone"},
    ]
