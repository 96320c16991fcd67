"""The queue side by itself: who may run what, and what happens to a turn that nobody looks after."""

import secrets
from collections.abc import AsyncIterator

import pytest

from bub_redis.settings import Settings
from bub_redis.storage import RedisServer
from bub_redis.storage.keys import QueueKeys
from bub_redis.testing import wait_until
from bub_redis.turns import Turn
from bub_redis.turns.queue import Attempt, TurnQueue
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
    assert await queue.beat([attempt], attempt.worker) == [False]
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
    assert await queue.beat([attempt], attempt.worker) == [True]
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
