"""wait_until returns when the condition holds, and otherwise names what did not come true."""

import pytest

from bub_redis.testing import wait_until


async def test_it_asks_until_the_answer_is_true() -> None:
    answers = iter([0, "", None, "yes"])
    await wait_until(lambda: next(answers), "yes was said")
    assert next(answers, "none left") == "none left"


async def test_the_predicate_may_be_asynchronous() -> None:
    answers = iter([False, True])

    async def ready() -> bool:
        return next(answers)

    await wait_until(ready, "it is ready")


async def test_a_condition_that_does_not_come_is_named() -> None:
    with pytest.raises(AssertionError, match=r"not within 0.02 s: the turn is finished"):
        await wait_until(lambda: False, "the turn is finished", timeout_s=0.02)


async def test_an_error_of_the_predicate_is_not_hidden() -> None:
    def late() -> bool:
        raise TimeoutError("the predicate's own")

    with pytest.raises(TimeoutError, match="own"):
        await wait_until(late, "never asked twice")
