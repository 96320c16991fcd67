"""A short chaos run as part of the suite; `make chaos SEED=n` is the long one."""

import os
import random

import pytest

from tests.chaos.plan import Plan
from tests.chaos.run import chaos


@pytest.mark.timeout(120)
async def test_nothing_is_lost_doubled_or_out_of_order() -> None:
    plan = Plan(
        seed=random.SystemRandom().randrange(10_000),
        workers=3,
        sessions=10,
        turns=100,
        faults_s=10.0,
        server_kills=2,
        settle_s=40.0,
    )
    assert await chaos(plan, os.environ.get("BUB_TEST_SERVER")) == []
