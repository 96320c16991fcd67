"""A server that went back to an older copy while a turn runs: a lagging replica took over, or the disk lost a second.

The worker lives, and what it holds in memory is more than what the server has. Its turn is whole on the tape all the
same.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from bub_redis.agent import Agent, tool
from bub_redis.errors import Conflict
from bub_redis.settings import Settings, load_settings
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape import SpillStore, Tape, TapeEntry
from bub_redis.tape.fork import Fork
from bub_redis.testing import EmbeddedServer, ModelRequest, Reply, ScriptedModel, call, say
from bub_redis.turns import Turn, TurnClient
from tests.redis.audit import assert_no_half_pair, committed_turns
from tests.redis.workers import working

SOON = timedelta(seconds=20)
SPILL = SpillStore()


class Stage:
    """An agent that does a step for each word of the prompt: `quick…` and `large` at once, `gate…` when opened."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self._reached: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._opened: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

        @tool
        async def act(word: str) -> str:
            """Do what a word says."""
            self.ran.append(word)
            if word.startswith("gate"):
                self._reached[word].set()
                await self._opened[word].wait()
            return "x" * 200_000 if word == "large" else f"did {word}"

        self.agent = Agent(model=ScriptedModel(self._next), tools=[act], sidecars=[SPILL])

    @staticmethod
    def _next(request: ModelRequest) -> Reply:
        plan = next(message["content"] for message in request.messages if message["role"] == "user")
        words, done = plan.split(), len(request.tool_results)
        return call("act", word=words[done]) if done < len(words) else say("done")

    async def reached(self, word: str) -> None:
        """Wait until the agent stands there."""
        async with asyncio.timeout(10):
            await self._reached[word].wait()

    def open(self, word: str) -> None:
        """Let it go on from there."""
        self._opened[word].set()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that keeps what it has when it is told to, and nothing later."""
    with EmbeddedServer(data_dir=tmp_path, appendonly=False) as started:
        yield started


@pytest.fixture
def settings(server: EmbeddedServer) -> Settings:
    """Leases that outlive the loss: the same attempt goes on."""
    return load_settings(
        redis_url=server.url, lease_s=9.0, beat_s=0.2, reconcile_s=0.05, waiting_grace_s=0.5, drain_s=0.0
    )


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[TurnClient]:
    """A sender."""
    async with TurnClient(settings) as opened:
        yield opened


@pytest.fixture
def stage() -> Stage:
    """What the worker's agent does."""
    return Stage()


async def keep(client: TurnClient) -> None:
    """This is the copy that the server will go back to."""
    await client.server.commands.save()


def go_back(server: EmbeddedServer) -> None:
    server.kill()
    server.start()


async def goes_on(settings: Settings, client: TurnClient, stage: Stage, turn: Turn) -> None:
    """Another worker brings the turn to its end."""
    async with working(settings, stage.agent):
        assert (await client.result(turn, timeout=SOON)).status == "completed"


async def test_a_journal_that_lost_its_end_is_written_anew(
    server: EmbeddedServer, settings: Settings, client: TurnClient, stage: Stage
) -> None:
    """What the next attempt reads has no hole, and nothing runs twice that this one knows the result of."""
    words = "gate1 quick1 gate2 quick2 gate3"
    turn = await client.enqueue("s", words)
    async with working(settings, stage.agent):
        await stage.reached("gate1")
        await keep(client)
        stage.open("gate1")
        await stage.reached("gate2")
        go_back(server)
        stage.open("gate2")
        await stage.reached("gate3")
    # The worker was drained while the last call ran, so its outcome is unknown.
    stage.open("gate3")
    await goes_on(settings, client, stage, turn)
    assert stage.ran == words.split()
    entries = await client.tape("s").query().all()
    assert_no_half_pair(entries)
    results = [entry.payload["results"] for entry in entries if entry.kind == "tool_result"]
    assert results[:-1] == [[f"did {word}"] for word in words.split()[:-1]]


async def test_a_journal_that_somebody_deleted_is_written_anew(
    settings: Settings, client: TurnClient, stage: Stage
) -> None:
    words = "quick1 gate1 quick2 gate2"
    turn = await client.enqueue("s", words)
    async with working(settings, stage.agent):
        await stage.reached("gate1")
        await client.server.commands.delete(TapeKeys("bub", "s").journal(turn.id))
        stage.open("gate1")
        await stage.reached("gate2")
    stage.open("gate2")
    await goes_on(settings, client, stage, turn)
    assert stage.ran == words.split()


async def test_a_tape_that_lost_its_bootstrap_gets_it_again(
    settings: Settings, client: TurnClient, stage: Stage
) -> None:
    turn = await client.enqueue("s", "gate1")
    async with working(settings, stage.agent):
        await stage.reached("gate1")
        keys = TapeKeys("bub", "s")
        await client.server.commands.delete(*keys.written, keys.journal(turn.id))
        await client.server.reply("HDEL", keys.state, "generation", "count", "last", "ms", "anchor")
        stage.open("gate1")
        assert (await client.result(turn, timeout=SOON)).status == "completed"
    assert stage.ran == ["gate1"]
    assert await committed_turns(client.store, "s", {turn.id: "gate1"}) == [turn.id]
    assert len(await client.tape("s").anchors()) == 1


async def test_a_spilled_result_that_was_lost_is_not_said_to_be_stored(
    server: EmbeddedServer, settings: Settings, client: TurnClient, stage: Stage
) -> None:
    """Its call is told as interrupted, or made again: nothing points to what is not there."""
    turn = await client.enqueue("s", "gate1 large gate2")
    async with working(settings, stage.agent):
        await stage.reached("gate1")
        await keep(client)
        stage.open("gate1")
        await stage.reached("gate2")
        go_back(server)
        stage.open("gate2")
        assert (await client.result(turn, timeout=SOON)).status == "completed"
    tape = Tape("s", client.store, sidecars=(SPILL,))
    entries = await tape.query().all()
    assert_no_half_pair(entries)
    for handle in handles(entries):
        assert await SPILL.intact(tape, handle)


def handles(entries: list[TapeEntry]) -> list[str]:
    """Of what the tape says is stored."""
    return [
        entry.payload["data"]["handle"]
        for entry in entries
        if entry.kind == "event" and entry.payload.get("name") == "spill.write"
    ]


async def test_a_turn_that_the_tape_lost_is_not_said_to_have_ended_well(
    settings: Settings, client: TurnClient, stage: Stage
) -> None:
    """The queue side, which is a server of its own or was saved later, still knows its receipt."""
    turn = await client.enqueue("s", "quick1")
    async with working(settings, stage.agent):
        assert (await client.result(turn, timeout=SOON)).status == "completed"
    keys = TapeKeys("bub", "s")
    await client.server.commands.delete(*keys.written, keys.state, keys.turns, keys.frames(turn.id))
    with pytest.raises(Conflict, match="and its tape has lost it: the tape's server went back to an older copy"):
        await client.result(turn, timeout=5)
    with pytest.raises(Conflict):
        [frame async for frame in client.follow(turn)]


async def test_a_fork_is_not_merged_into_a_tape_that_lost_what_it_saw(
    server: EmbeddedServer, client: TurnClient
) -> None:
    store = client.store
    await store.append("s", say_so("one"))
    await keep(client)
    await store.append("s", say_so("two"))
    async with store.session("s", "fork", 0.0) as grant:
        fork = await Fork.open(store, grant)
        await fork.append("s", say_so("three"))
        lock = await client.server.commands.dump(TapeKeys("bub", "s").lock)
        fence = await client.server.commands.dump(TapeKeys("bub", "s").fence)
        go_back(server)
        await client.server.commands.restore(TapeKeys("bub", "s").lock, 9000, lock, replace=True)
        await client.server.commands.restore(TapeKeys("bub", "s").fence, 0, fence, replace=True)
        # Others may have written since, up to the same number.
        await store.append("s", say_so("another two"))
        with pytest.raises(Conflict, match="went back to an older copy; nothing was written"):
            await fork.merge("completed")
    assert [entry.text for entry in await Tape("s", store).query().all()] == ["one", "another two"]


async def test_a_fork_is_merged_behind_what_others_appended(client: TurnClient) -> None:
    """The check is about what was seen, and not about what came."""
    store = client.store
    await store.append("s", say_so("one"))
    async with store.session("s", "fork", 0.0) as grant:
        fork = await Fork.open(store, grant)
        await fork.append("s", say_so("three"))
        await store.append("s", say_so("two"))
        await fork.merge("completed")
    assert [e.text for e in await Tape("s", store).query().kinds("message").all()] == ["one", "two", "three"]


def say_so(text: str) -> TapeEntry:
    return TapeEntry.message({"role": "user", "content": text})


async def test_a_steering_message_is_used_though_earlier_ones_were_lost(
    settings: Settings, client: TurnClient, stage: Stage
) -> None:
    """The queue side went back: messages are told by their ids, and not by how many came before."""
    turn = await client.enqueue("s", "gate1 gate2 gate3")
    async with working(settings, stage.agent):
        await stage.reached("gate1")
        assert await client.steer(turn, "first", steer_id="m1") is None
        stage.open("gate1")
        await stage.reached("gate2")
        await client.server.commands.delete(client.queue._keys.steers(turn.full_id))
        assert await client.steer(turn, "second", steer_id="m2") is None
        stage.open("gate2")
        await stage.reached("gate3")
        stage.open("gate3")
        assert (await client.result(turn, timeout=SOON)).status == "completed"
    said = await client.tape("s").query().kinds("message").all()
    assert [entry.meta["steer"] for entry in said if "steer" in entry.meta] == ["m1", "m2"]
