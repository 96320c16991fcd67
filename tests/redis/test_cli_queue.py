"""`bub-redis queue` and `turn list`: what waits and why, what died, and who works."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import pytest

from bub_redis.settings import Settings
from bub_redis.storage.keys import QueueKeys, TapeKeys
from bub_redis.testing import wait_until
from bub_redis.turns import TurnClient
from bub_redis.turns.attempt import Attempt
from bub_redis.turns.overview import QueueOverview
from bub_redis.turns.workers import Workers
from tests.redis.agents import agent
from tests.redis.commands import bub_redis, complaint, environment, invoke
from tests.redis.workers import kill, start_worker, working

Answer = TypeVar("Answer")
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(settings: Settings) -> Cli:
    return lambda *arguments: invoke(*arguments, env=environment(settings))


def with_client(settings: Settings, work: Callable[[TurnClient], Awaitable[Answer]]) -> Answer:
    async def connected() -> Answer:
        async with TurnClient(settings) as client:
            return await work(client)

    return asyncio.run(connected())


def enqueue(settings: Settings, *turns: tuple[str, str], session: str = "s") -> None:
    async def work(client: TurnClient) -> None:
        for turn_id, prompt in turns:
            await client.enqueue(session, prompt, turn_id=turn_id)

    with_client(settings, work)


def whys(finished: subprocess.CompletedProcess[str]) -> dict[str, str]:
    turns = [json.loads(line) for line in finished.stdout.splitlines()]
    return {turn["turn"]: turn["why"] for turn in turns}


def test_an_empty_queue(cli: Cli) -> None:
    assert cli("queue").stdout.splitlines() == [
        "running  0",
        "waiting  0 for a worker, or to be tried again",
        "behind   0 for a turn of the same session",
        "dead     0 that took their worker down too often",
        "workers  none: start one with `bub-redis worker MODULE:ATTRIBUTE`",
    ]
    assert cli("queue", "waiting").stdout == "no turn is open\n"
    assert cli("queue", "dead").stdout == "no turn is dead\n"
    assert cli("turn", "list").stdout == "no turn is open\n"


def test_the_first_waits_for_a_worker_and_the_others_for_the_first(settings: Settings, cli: Cli) -> None:
    enqueue(settings, ("m1", "a"), ("m2", "b"), ("m3", "c"))
    assert whys(cli("queue", "waiting", "--json")) == {
        "m1": "for a worker",
        "m2": "behind 1 of its session",
        "m3": "behind 2 of its session",
    }
    counts = json.loads(cli("queue", "--json").stdout)
    assert {name: counts[name] for name in ("open", "running", "waiting", "behind", "dead")} == {
        "open": 3,
        "running": 0,
        "waiting": 1,
        "behind": 2,
        "dead": 0,
    }
    assert cli("turn", "list", "s").stdout.splitlines()[1:] == [
        "m1    queued  0 s   for a worker",
        "m2    queued  0 s   behind 1 of its session",
        "m3    queued  0 s   behind 2 of its session",
    ]


def test_a_running_turn_is_shown_with_its_worker(settings: Settings, cli: Cli) -> None:
    enqueue(settings, ("m1", "a"))

    async def start(client: TurnClient) -> None:
        assert await client.queue.start(Attempt("s/m1", 1, "host-1"))

    with_client(settings, start)
    assert whys(cli("turn", "list", "--json")) == {"m1": "on host-1 since 0 s"}
    cli("turn", "cancel", "s", "m1")
    assert whys(cli("turn", "list", "s", "--json")) == {"m1": "on host-1 since 0 s, being cancelled"}


def test_a_turn_that_was_handed_back_says_why_and_when_it_is_tried_again(settings: Settings, cli: Cli) -> None:
    enqueue(settings, ("m1", "a"))

    async def hand_back(client: TurnClient) -> None:
        attempt = Attempt("s/m1", 1, "host-1")
        assert await client.queue.start(attempt)
        assert await client.queue.hand_back(attempt, pause_s=20.4, reason="no answer from the provider")

    with_client(settings, hand_back)
    assert whys(cli("queue", "waiting", "--json")) == {"m1": "tried again in 20 s: no answer from the provider"}


async def test_a_blocked_tape_is_shown_first_with_its_remedy(settings: Settings, client: TurnClient) -> None:
    await client.server.commands.xadd(TapeKeys(settings.namespace, "z").tape, {"by": "hand"})
    async with working(settings, agent):
        await client.enqueue("z", "hi", turn_id="m1")

        async def blocked() -> bool:
            return any(turn.blocked for turn in await QueueOverview(client.queue).turns())

        await wait_until(blocked, "the turn to be handed back")
    await client.enqueue("a", "hi", turn_id="m2")
    env = environment(settings)
    listed = await asyncio.to_thread(bub_redis, "queue", "waiting", env=env)
    first = listed.stdout.splitlines()[1]
    assert first.startswith("z ") and "blocked: " in first and "`bub-redis tape repair`" in first
    examined = await asyncio.to_thread(bub_redis, "doctor", env=env)
    assert examined.returncode == 5
    assert "→ bub-redis tape repair z" in examined.stdout


async def test_workers_are_listed_while_they_live(settings: Settings, client: TurnClient) -> None:
    workers = Workers(client.queue)
    worker = start_worker(settings, "tests.redis.agents:agent")
    try:
        await wait_until(workers.alive, "the worker's heartbeat")
        (load,) = await workers.alive()
        assert (load.pid, load.running, load.max_jobs) == (worker.pid, 0, settings.max_jobs)
    finally:
        kill(worker)
    await client.server.commands.delete(QueueKeys(settings.namespace).worker(load.id))
    assert await workers.alive() == []


async def test_a_dead_turn_is_listed_and_can_be_sent_again(settings: Settings, client: TurnClient) -> None:
    env = environment(settings)
    turn = await client.enqueue("s", "die now", turn_id="m1")
    first, second = (start_worker(settings, "tests.redis.agents:agent", BUB_MAX_CRASHES="1") for _ in range(2))
    try:
        result = await client.result(turn, timeout=timedelta(seconds=20))
        # What is on the tape is told to the queue side a moment later.
        await wait_until(client.dead, "the turn to be listed as dead")
    finally:
        kill(first)
        kill(second)
    assert result.status == "failed"
    listed = await asyncio.to_thread(bub_redis, "queue", "dead", "--json", env=env)
    (dead,) = map(json.loads, listed.stdout.splitlines())
    assert (dead["session"], dead["id"], dead["prompt"]) == ("s", "m1", "die now")
    for _ in range(2):
        retried = await asyncio.to_thread(bub_redis, "queue", "retry", "s", "m1", env=env)
        assert (retried.returncode, retried.stdout) == (0, "turn m1~2 of session s\n")
    cancelled = await asyncio.to_thread(bub_redis, "turn", "cancel", "s", "m1~2", env=env)
    assert cancelled.returncode == 0


def test_a_turn_that_is_not_dead_cannot_be_sent_again(settings: Settings, cli: Cli) -> None:
    enqueue(settings, ("m1", "a"))
    refused = cli("queue", "retry", "s", "m1")
    assert refused.returncode == 3
    assert complaint(refused) == "turn 'm1' of session 's' is not dead; `bub-redis queue dead` lists those that are"


def test_a_sessions_turns_that_ended_are_listed_from_its_tape(settings: Settings, cli: Cli) -> None:
    async def work() -> None:
        async with TurnClient(settings) as client, working(settings, agent):
            for n in range(3):
                await client.result(await client.enqueue("s", "hi", turn_id=f"m{n}"))

    asyncio.run(work())
    listed = [json.loads(line) for line in cli("turn", "list", "s", "--last", "2", "--json").stdout.splitlines()]
    assert [(turn["turn"], turn["status"]) for turn in listed] == [("m1", "completed"), ("m2", "completed")]
    shown = cli("turn", "list", "s").stdout.splitlines()
    assert len(shown) == 4
    assert " UTC  entries " in shown[1]
    enqueue(settings, ("m3", "hi"))
    *ended, waits = [json.loads(line) for line in cli("turn", "list", "s", "--json").stdout.splitlines()]
    assert [(turn["session"], turn["tape"], turn["turn"]) for turn in (ended[-1], waits)] == [
        ("s", "s", "m2"),
        ("s", "s", "m3"),
    ]


def test_after_a_reset_it_is_said_where_ended_turns_are_known(settings: Settings, cli: Cli) -> None:
    async def work() -> None:
        async with TurnClient(settings) as client, working(settings, agent):
            await client.result(await client.enqueue("s", "hi", turn_id="m1"))
            await client.reset("s")

    asyncio.run(work())
    listed = cli("turn", "list", "s")
    assert listed.stdout == "no turn is open, and none that ended is shown\n"
    assert listed.stderr == (
        "the tape was reset: how turns before that ended is known to `bub-redis turn result` for 24 h "
        "(BUB_TURN_TTL_S)\n"
    )
    assert cli("turn", "list", "s", "--json").stderr == ""
    result = cli("turn", "result", "s", "m1")
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == "the tape was reset since: its answer is not there any more\n"
    followed = cli("turn", "follow", "s", "m1")
    assert followed.stdout.splitlines()[-1] == ("completed (the tape was reset since: nothing of it is there any more)")


def test_a_session_that_nobody_knows(settings: Settings, cli: Cli) -> None:
    refused = cli("turn", "list", "nobody")
    assert refused.returncode == 3
    assert "session 'nobody' has no turns" in complaint(refused)
