"""Many turns, blocked loops, old copies: what a fleet goes through."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from bub_redis.agent import Agent
from bub_redis.settings import Settings, load_settings
from bub_redis.storage.keys import QueueKeys
from bub_redis.tape import Tape
from bub_redis.tape.receipt import verify_entries
from bub_redis.testing import EmbeddedServer, wait_until
from bub_redis.turns import Turn, TurnClient
from tests.redis.agents import agent
from tests.redis.audit import committed_turns
from tests.redis.workers import kill, start_worker, worker_processes, working

AGENT = "tests.redis.agents:agent"
SOON = timedelta(seconds=30)


async def test_more_than_100_turns_in_progress_do_not_starve_others(client: TurnClient, settings: Settings) -> None:
    """A stock arq worker never sees beyond the first 100 of its queue (arq 0.28)."""
    roomy = settings.model_copy(update={"max_jobs": 130})
    async with working(roomy, agent):
        slow = [await client.enqueue(f"slow {n}", "wait 30") for n in range(120)]

        async def all_running() -> bool:
            standings = [await client.queue.standing(turn) for turn in slow]
            return all(standing and standing.status == "running" for standing in standings)

        await wait_until(all_running, "120 turns to run", timeout_s=20)
        quick = await client.enqueue("quick", "hello")
        assert (await client.result(quick, timeout=SOON)).status == "completed"
        await asyncio.gather(*(client.cancel(turn) for turn in slow))
        results = [await client.result(turn, timeout=SOON) for turn in slow]
    assert {result.status for result in results} == {"cancelled"}


async def test_a_tool_that_blocks_the_loop_longer_than_the_lease_loses_nothing(
    client: TurnClient, settings: Settings
) -> None:
    """The keeper renews from a thread of its own: no second attempt, and the neighbour only waits."""
    blocking = await client.enqueue("s", "block 3", turn_id="m1")
    neighbour = await client.enqueue("n", "wait 0.1", turn_id="m1")
    with worker_processes(settings, AGENT, count=2):
        results = [await client.result(turn, timeout=SOON) for turn in (blocking, neighbour)]
    assert [(r.status, r.receipt and r.receipt.attempt) for r in results] == [("completed", 1), ("completed", 1)]


async def test_a_loop_that_is_blocked_for_good_gives_its_turns_to_others(
    client: TurnClient, settings: Settings
) -> None:
    """Past `loop_stall_s` nothing is renewed any more, and the process ends itself with 70 soon after."""
    turn = await client.enqueue("s", "block 60", turn_id="m1")
    stalled = start_worker(settings.model_copy(update={"loop_stall_s": 0.5}), AGENT, BUB_STALL_GRACE_S="1")
    try:
        await wait_until(lambda: stalled.poll() is not None, "the stalled worker to end itself", timeout_s=20)
        assert stalled.returncode == 70
        with worker_processes(settings, AGENT):
            assert (await client.result(turn, timeout=SOON)).status == "completed"
    finally:
        kill(stalled)
    assert await committed_turns(client.store, "s", {"m1": "block 60"}) == ["m1"]


async def test_scripts_are_sent_again_after_a_flush(client: TurnClient, settings: Settings) -> None:
    async with working(settings, agent):
        for number in range(3):
            await client.server.commands.script_flush()
            turn = await client.enqueue("s", "order 7", turn_id=f"m{number}")
            assert (await client.result(turn, timeout=SOON)).status == "completed"
    assert await committed_turns(client.store, "s", dict.fromkeys(["m0", "m1", "m2"], "order 7")) == ["m0", "m1", "m2"]


async def test_a_queue_side_restored_from_an_older_copy_repeats_nothing(client: TurnClient, settings: Settings) -> None:
    """Its turns run again as far as the tape, find their receipts, and end; new ones follow."""
    prompts = {"m1": "hello", "m2": "order 7", "m3": "after"}
    turns = [await client.enqueue("s", prompts[turn_id], turn_id=turn_id) for turn_id in ("m1", "m2")]
    commands = client.server.commands
    keys = [key async for key in commands.scan_iter(f"{settings.namespace}:*") if b":{" not in key]
    keys += [key async for key in commands.scan_iter(f"arq:job:{settings.namespace}/*")]
    copy = {key: await commands.dump(key) for key in keys}
    async with working(settings, agent):
        for turn in turns:
            await client.result(turn, timeout=SOON)
    await commands.delete(*[key async for key in commands.scan_iter(f"{settings.namespace}:*") if b":{" not in key])
    for key, value in copy.items():
        await commands.restore(key, 0, value, replace=True)
    async with working(settings, agent):
        last = await client.enqueue("s", prompts["m3"], turn_id="m3")
        assert (await client.result(last, timeout=SOON)).status == "completed"
    assert await committed_turns(client.store, "s", prompts) == ["m1", "m2", "m3"]


async def test_a_tape_that_lost_its_tail_says_so_and_goes_on(client: TurnClient, settings: Settings) -> None:
    """Case 152: a fail-over to a replica that did not get the last commits."""
    await run(client, settings, agent, await client.enqueue("s", "hello", turn_id="m1"))
    commands = client.server.commands
    keys = [key async for key in commands.scan_iter(f"{settings.namespace}:{{s}}*") if b":frames:" not in key]
    older = {key: await commands.dump(key) for key in keys}
    await run(client, settings, agent, await client.enqueue("s", "lost", turn_id="m2"))
    for key, value in older.items():
        await commands.restore(key, 0, value, replace=True)
    await run(client, settings, agent, await client.enqueue("s", "after", turn_id="m3"))
    assert await committed_turns(client.store, "s", {"m1": "hello", "m3": "after"}) == ["m1", "m3"]
    entries = await Tape("s", client.store).query().all()
    found = await verify_entries(client.store.oldest_first("s"))
    (told,) = [entry.payload["data"] for entry in entries if entry.id in found.lost_tails]
    assert found.intact
    assert told["found"] < told["receipt"]


async def run(client: TurnClient, settings: Settings, agent: Agent, turn: Turn) -> None:
    """Run the turn to its end on both sides."""
    async with working(settings, agent):
        await client.result(turn, timeout=SOON)
        key = QueueKeys(settings.namespace).turn(turn.full_id)

        async def finished() -> bool:
            return bool(await client.server.commands.execute_command("HGET", key, "status") == b"completed")

        await wait_until(finished, "the turn to be finished")


@pytest.mark.parametrize("sides", ["one", "two"])
async def test_tape_and_queue_may_live_on_two_servers(tmp_path: Path, sides: str) -> None:
    with EmbeddedServer(data_dir=tmp_path / "q") as queue_side, EmbeddedServer(data_dir=tmp_path / "t") as tape_side:
        tape_url = tape_side.url if sides == "two" else None
        settings = load_settings(redis_url=queue_side.url, tape_url=tape_url, reconcile_s=0.05)
        async with TurnClient(settings) as client, working(settings, agent):
            turn = await client.enqueue("s", "order 7", turn_id="m1")
            assert (await client.result(turn, timeout=SOON)).status == "completed"
            assert await committed_turns(client.store, "s", {"m1": "order 7"}) == ["m1"]
            tapes = [key async for key in client.server.commands.scan_iter("bub:{s}:tape")]
            assert bool(tapes) == (sides == "one")
