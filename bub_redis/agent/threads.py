"""Threads of their own for sync tools: a pool's are soon all taken by tools that hang, and waited for at the end."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T], name: str) -> T:
    """Do `work` in a daemon thread called `name`, in a copy of this context, and return what it returns.

    There are as many threads as there are calls, and nothing waits for one that nobody listens to any more: not a
    cancelled caller, not a loop that closes, not a process that ends. Raises what `work` raises, with a RuntimeError
    for its StopIteration; a RuntimeError too if no thread can be started.
    """
    outcome: Future[T] = Future()
    # Running, so that a cancel of the caller leaves the thread something to put its outcome into.
    outcome.set_running_or_notify_cancel()
    inside = contextvars.copy_context()
    threading.Thread(target=inside.run, args=(_settle, outcome, work), name=name, daemon=True).start()
    try:
        return await asyncio.wrap_future(outcome)
    finally:
        # An error's traceback leads here, and from here to the error: a cycle would keep all of the turn.
        del outcome


def _settle(outcome: Future[T], work: Callable[[], T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(_carried(error))
    finally:
        # For the same reason.
        del outcome


def _carried(error: BaseException) -> BaseException:
    """The error as a future takes it: of a StopIteration the caller would never hear on Python 3.11."""
    if not isinstance(error, StopIteration):
        return error
    carried = RuntimeError("StopIteration")
    carried.__cause__ = error
    return carried
