"""The wire between a worker and its server fails at each script of a turn: the turn is committed once all the same."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from bub_redis.settings import Settings, load_settings
from bub_redis.storage.script import Script
from bub_redis.testing import EmbeddedServer, wait_until
from bub_redis.turns import Turn, TurnClient
from tests.redis.agents import agent
from tests.redis.audit import committed_turns
from tests.redis.proxy import Proxy, proxied
from tests.redis.workers import working

SOON = timedelta(seconds=30)
OF_STORAGE = ["grant", "bootstrap", "journal", "merge", "renew"]
OF_TURNS = ["claim", "start", "beat", "frames", "finish", "reconcile"]
ONCE, FOR_LONG = 1, 6
"""A lost reply that the client's own repeat heals, and more of them than it repeats: an outage."""


@pytest.fixture
async def proxy(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Proxy]:
    async with proxied(server, tmp_path) as wire:
        yield wire


def behind(proxy: Proxy, settings: Settings) -> Settings:
    """The same settings for whoever talks through the proxy."""
    changed = settings.model_dump(exclude={"redis_url", "home"})
    return load_settings(**changed, redis_url=proxy.url)


@pytest.mark.parametrize("times", [ONCE, FOR_LONG], ids=["once", "for long"])
@pytest.mark.parametrize("name", OF_STORAGE + OF_TURNS)
async def test_a_lost_reply_to_any_script_of_a_turn_repeats_nothing(
    client: TurnClient, settings: Settings, proxy: Proxy, name: str, times: int
) -> None:
    script = Script("bub_redis.storage" if name in OF_STORAGE else "bub_redis.turns", name)
    prompts = {"m1": "stock 7", "m2": "slowly one two three"}
    turns = [await client.enqueue("s", prompt, turn_id=turn_id) for turn_id, prompt in prompts.items()]
    await known_to_the_server(client, script)
    proxy.lose_reply_to(script.sha.encode(), times)
    async with working(behind(proxy, settings), agent):
        for turn in turns:
            result = await client.result(turn, timeout=SOON)
            assert result.status == "completed"
            assert await told(client, turn) == result.text
        if name in {"renew", "beat"}:
            slow = await client.enqueue("slow", "wait 1", turn_id="m1")
            assert (await client.result(slow, timeout=SOON)).status == "completed"
        await wait_until(lambda: proxy.struck > 0, "the fault to strike", timeout_s=20)
    assert await committed_turns(client.store, "s", prompts) == ["m1", "m2"]


@pytest.mark.parametrize("name", ["enqueue", "steer", "cancel"])
async def test_a_sender_that_hears_no_answer_repeats_itself(
    client: TurnClient, settings: Settings, proxy: Proxy, name: str
) -> None:
    script = Script("bub_redis.turns", name)
    await known_to_the_server(client, script)
    async with TurnClient(behind(proxy, settings)) as sender:
        turn = await client.enqueue("s", "hello", turn_id="m1")
        proxy.lose_reply_to(script.sha.encode(), 2)
        match name:
            case "enqueue":
                await sender.enqueue("s", "again", turn_id="m2")
                assert [await place(client, turn_id) for turn_id in ("m1", "m2")] == [0, 1]
            case "steer":
                assert await sender.steer(turn, "more", steer_id="x") is None
                assert len(await client.queue.steers(turn)) == 1
            case "cancel":
                assert await sender.cancel(turn) == "cancelled"
                assert await client.queue.claim(10) == []
        assert proxy.struck == 2


async def known_to_the_server(client: TurnClient, script: Script) -> None:
    """Load the script: else the reply that is lost only says that the server does not know it, and nothing was done."""
    for server in (client.server, client.store.server):
        await server.commands.script_load(script.text)


async def told(client: TurnClient, turn: Turn) -> str:
    """The text that followers of the turn were shown last, after checking that they saw no gap and nothing twice."""
    frames = [frame async for frame in client.follow(turn) if frame.type != "queued"]
    assert "gap" not in [frame.type for frame in frames]
    places = [(frame.attempt, frame.number) for frame in frames]
    assert places == sorted(set(places))
    last = frames[-1].attempt
    return "".join(frame.data["delta"] for frame in frames if frame.type == "text" and frame.attempt == last)


async def place(client: TurnClient, turn_id: str) -> int | None:
    standing = await client.queue.standing(client.turn("s", turn_id))
    return standing.place if standing else None
