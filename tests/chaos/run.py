"""One chaos run: send, break, settle, judge."""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from bub_redis.errors import NotFound, Outage
from bub_redis.turns import Turn, TurnClient
from tests.chaos.fleet import Fleet
from tests.chaos.judge import judge
from tests.chaos.plan import Plan, Sent, prompt

T = TypeVar("T")


async def insist(operation: Callable[[], Awaitable[T]]) -> T:
    """Repeat through outages, as a sender does that must not lose anything."""
    while True:
        try:
            return await operation()
        except Outage:
            await asyncio.sleep(0.05)  # noqa: TID251 - a sender's own pause


class Senders:
    """Users: they send turns, twice now and then, and cancel and steer some of them."""

    def __init__(self, plan: Plan, client: TurnClient) -> None:
        self._plan = plan
        self._client = client
        self._random = random.Random(f"senders {plan.seed}")
        self.sent: dict[str, Sent] = {f"session {n}": Sent() for n in range(plan.sessions)}
        self.extras = {"duplicates": 0, "cancels": 0, "steers": 0, "steers taken back": 0}

    async def run(self) -> None:
        """Send everything; each session by a task of its own."""
        each = self._plan.turns // self._plan.sessions
        await asyncio.gather(*(self._session(name, sent, each) for name, sent in self.sent.items()))

    async def _session(self, name: str, sent: Sent, count: int) -> None:
        for number in range(count):
            turn_id, text = f"m{number}", prompt(self._random)
            turn = await insist(lambda: self._client.enqueue(name, text, turn_id=turn_id))  # noqa: B023
            sent.prompts[turn_id] = text
            await self._meddle(turn, text, sent)
            await asyncio.sleep(self._random.uniform(0, 0.4))  # noqa: TID251 - a user's own pause

    async def _meddle(self, turn: Turn, text: str, sent: Sent) -> None:
        chance = self._random.random()
        if chance < 0.05:
            self.extras["duplicates"] += 1
            await insist(lambda: self._client.enqueue(turn.session, text, turn_id=turn.id))
        elif chance < 0.10:
            self.extras["cancels"] += 1
            if await insist(lambda: self._client.cancel(turn)) == "cancelled":
                sent.cancelled.add(turn.id)
        elif chance < 0.15:
            self.extras["steers"] += 1
            steer_id, steer = f"steer-{turn.id}", f"hello steer {turn.id}"
            await insist(lambda: self._client.steer(turn, steer, steer_id=steer_id))
            sent.steers[steer_id] = steer
            if self._random.random() < 0.5:
                self.extras["steers taken back"] += 1
                await insist(lambda: self._client.cancel(self._client.turn(turn.session, steer_id)))

    async def all_ended(self, timeout_s: float) -> list[str]:
        """Wait for the end of everything that was sent; what has not ended in time."""
        turns = [
            (self._client.turn(session, turn_id), sent)
            for session, sent in self.sent.items()
            for turn_id in [*sent.prompts, *sent.steers]
        ]
        deadline = time.monotonic() + timeout_s
        late: list[str] = []
        for turn, sent in turns:
            left_s = max(deadline - time.monotonic(), 0.05)
            try:
                result = await insist(lambda: self._client.result(turn, timeout=timedelta(seconds=left_s)))  # noqa: B023
                if turn.id in sent.steers and result.status == "cancelled" and result.receipt is None:
                    sent.unused.add(turn.id)
            except TimeoutError:
                late.append(turn.full_id)
            except NotFound:
                late.append(f"{turn.full_id} (unknown)")
        return late


async def chaos(plan: Plan, binary: str | None = None) -> list[str]:
    """Run the plan and return what is wrong; nothing is what is wanted. Prints what was done."""
    print(f"chaos: seed {plan.seed}, {plan.workers} workers, {plan.sessions} sessions, {plan.turns} turns")
    with tempfile.TemporaryDirectory(prefix="bub-chaos-") as folder:
        fleet = Fleet(plan, Path(folder), binary)
        try:
            async with TurnClient(fleet.settings) as client:
                senders = Senders(plan, client)
                began = time.monotonic()
                sending = asyncio.create_task(senders.run())
                breaking = asyncio.create_task(_break(plan, fleet))
                await asyncio.wait({sending, breaking}, return_when=asyncio.ALL_COMPLETED)
                await sending
                await breaking
                await fleet.repair()
                late = await senders.all_ended(plan.settle_s)
                wrong = [f"not ended: {turn}" for turn in late] or await judge(client, fleet.settings, senders.sent)
                _tell(fleet, senders, time.monotonic() - began, wrong)
                return wrong
        finally:
            fleet.close()


async def _break(plan: Plan, fleet: Fleet) -> None:
    randomly = random.Random(f"pauses {plan.seed}")
    until = time.monotonic() + plan.faults_s
    while time.monotonic() < until:
        await asyncio.sleep(randomly.uniform(*plan.pause_s))  # noqa: TID251 - the plan's own pace
        await fleet.break_something()


def _tell(fleet: Fleet, senders: Senders, took_s: float, wrong: list[str]) -> None:
    faults = ", ".join(f"{count} × {fault}" for fault, count in sorted(fleet.faults.items()))
    extras = ", ".join(f"{count} {extra}" for extra, count in senders.extras.items())
    print(f"chaos: {sum(fleet.faults.values())} faults in {took_s:.0f} s: {faults}")
    print(f"chaos: {extras}")
    print("chaos: all turns once, in order, whole" if not wrong else "\n".join(["chaos: WRONG", *wrong[:50]]))
    sys.stdout.flush()
