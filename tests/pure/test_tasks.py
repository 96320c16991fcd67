"""Tasks in the background: a failure is said at once and survived, a cancellation ends them."""

import asyncio

from structlog.testing import capture_logs

from bub_redis.tasks import ended, run_for_good
from bub_redis.testing import wait_until


async def test_work_that_fails_is_logged_and_begins_again() -> None:
    began = 0

    async def work() -> None:
        nonlocal began
        began += 1
        raise ZeroDivisionError

    with capture_logs() as logs:
        task = asyncio.create_task(run_for_good("reconciler", work, pause_s=0.001))
        await wait_until(lambda: began >= 3, "the work to begin again")
        await ended(task)
    assert logs[0] == {"event": "task.failed", "log_level": "error", "task": "reconciler", "exc_info": True}


async def test_a_cancellation_within_the_work_ends_it() -> None:
    working = asyncio.Event()

    async def work() -> None:
        working.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(run_for_good("reconciler", work))
    await working.wait()
    await ended(task)
    assert task.cancelled()
