"""What others wrote into keys of ours, beside what is kept there: no turn, follower or command stumbles over it."""

import asyncio
from datetime import timedelta

import pytest

from bub_redis.settings import Settings
from bub_redis.storage.journal import Journal, Record
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.lock import Committed
from bub_redis.storage.store import RedisTapeStore
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.store import Grant
from bub_redis.turns import TurnClient
from bub_redis.turns.attempt import Attempt
from tests.redis.agents import agent
from tests.redis.audit import committed_turns
from tests.redis.commands import bub_redis, environment, json_lines
from tests.redis.workers import working

SOON = timedelta(seconds=20)
LARGEST_ID = "18446744073709551615-18446744073709551615"


async def add(client: TurnClient, key: str, stream_id: str, fields: dict[str, str]) -> None:
    """Write into one of our streams by hand."""
    await client.store.server.reply("XADD", key, stream_id, *(part for pair in fields.items() for part in pair))


def record(kind: str, payload: str, *, tape: str = "", meta: str = "{}", date: str = "") -> dict[str, str]:
    return {"tape": tape, "kind": kind, "payload": payload, "meta": meta, "date": date}


# The journal


@pytest.mark.parametrize(
    ("stream_id", "fields"),
    [
        ("*", {"by": "hand"}),
        ("0-2", {"by": "hand"}),
        ("0-7", {"by": "hand"}),
        (LARGEST_ID, {"by": "hand"}),
        ("*", record("result", "{}")),
        ("0-2", record("result", "{")),
        ("0-2", record("result", "[]")),
        ("0-2", record("message", "{}", tape="another")),
    ],
)
async def test_a_turn_passes_over_what_stands_in_its_journal(
    client: TurnClient, settings: Settings, stream_id: str, fields: dict[str, str]
) -> None:
    """Behind what an earlier attempt had begun to write."""
    journal = TapeKeys(settings.namespace, "s").journal("m1")
    await add(client, journal, "0-1", record("begun", '{"generation":0}'))
    await add(client, journal, stream_id, fields)
    turn = await client.enqueue("s", "stock 7", turn_id="m1")
    async with working(settings, agent):
        result = await client.result(turn, timeout=SOON)
    assert (result.status, result.receipt and result.receipt.attempt) == ("completed", 1)
    assert await committed_turns(client.store, "s", {"m1": "stock 7"}) == ["m1"]
    assert await client.store.list_tapes() == ["s"]


async def granted(store: RedisTapeStore) -> Grant:
    """The session s, for turn m1."""
    found = await store.lock.grant("s", "m1", dispatch=1, secret="x")  # noqa: S106 - no password
    assert not isinstance(found, Committed)
    return found


@pytest.mark.parametrize("stream_id", ["*", "0-7", LARGEST_ID])
async def test_what_others_write_between_two_records_loses_none(
    redis_store: RedisTapeStore, namespace: str, stream_id: str
) -> None:
    """Also of a repeat after a lost reply, which writes none twice."""
    grant = await granted(redis_store)
    journal = Journal(redis_store.server, namespace, grant)
    notes = [Record.note("call", {"key": str(number)}) for number in range(5)]
    await journal.write(notes[:2])
    key = TapeKeys(namespace, "s").journal("m1")
    await redis_store.server.reply("XADD", key, stream_id, "by", "hand")
    await Journal(redis_store.server, namespace, grant).write(notes[:2])
    await journal.write(notes[2:4])
    await journal.write(notes[4:])
    assert await Journal(redis_store.server, namespace, await granted(redis_store)).read() == notes


@pytest.mark.parametrize(
    "fields",
    [
        record("begun", "{}"),
        record("reset", "{}"),
        record("reset", '{"tape":"s","opening":[["anchor",[],{},""]],"sidecars":[]}'),
        record("result", "{}"),
        record("message", "{", tape="s"),
        record("message", '{"x":NaN}', tape="s"),
    ],
)
async def test_a_journal_that_makes_no_sense_ends_the_turn_all_the_same(
    client: TurnClient, settings: Settings, fields: dict[str, str]
) -> None:
    """By a closing attempt, with a receipt and an error; what the turn did before is not known."""
    once = settings.model_copy(update={"max_crashes": 1})
    journal = TapeKeys(settings.namespace, "s").journal("m1")
    await add(client, journal, "0-1", record("begun", '{"generation":0}'))
    await add(client, journal, "0-2", fields)
    turn = await client.enqueue("s", "hello", turn_id="m1")
    async with working(once, agent):
        result = await client.result(turn, timeout=SOON)
        assert (await client.result(await client.enqueue("s", "next"), timeout=SOON)).status == "completed"
    assert result.status == "failed" and result.receipt is not None
    assert "its journal cannot be read" in (result.error or "")
    errors = await Tape("s", client.store).query().kinds("error").all()
    assert [entry.payload["message"] for entry in errors] == [result.error]


async def test_a_cancelled_turn_is_cancelled_also_where_its_journal_makes_no_sense(
    client: TurnClient, settings: Settings
) -> None:
    """The receipt says what is missing."""
    turn = await client.enqueue("s", "hello", turn_id="m1")
    first = Attempt(turn.full_id, 1, "gone")
    assert await client.queue.start(first)
    await add(client, TapeKeys(settings.namespace, "s").journal("m1"), "0-1", record("begun", "{}"))
    assert await client.queue.hand_back(first, pause_s=60, reason="an outage")
    assert await client.cancel(turn) == "cancelling"
    async with working(settings, agent):
        result = await client.result(turn, timeout=SOON)
    assert (result.status, result.error) == ("cancelled", "what it did is lost: its journal cannot be read")


# Frames


@pytest.mark.parametrize(
    "fields",
    [
        {"by": "hand"},
        {"type": "text", "attempt": "1", "n": "one", "data": "{}"},
        {"type": "text", "attempt": "1", "n": "1", "data": "no JSON"},
        {"type": "text", "attempt": "1", "n": "1", "data": "[]"},
        {"type": "finished", "attempt": "1", "n": "1", "data": "{}", "receipt": "1-1"},
    ],
)
@pytest.mark.parametrize("stream_id", ["*", LARGEST_ID])
async def test_a_follower_passes_over_what_is_no_frame(
    client: TurnClient, settings: Settings, stream_id: str, fields: dict[str, str]
) -> None:
    """It ends with its turn, without a gap: it was shown nothing before."""
    turn = await client.enqueue("s", "hello", turn_id="m1")
    await client.cancel(turn)
    await add(client, TapeKeys(settings.namespace, "s").frames("m1"), stream_id, fields)
    async with asyncio.timeout(SOON.total_seconds()):
        (finished,) = [frame async for frame in client.follow(turn)]
    assert finished.data["status"] == "cancelled"


# The tape


async def test_an_event_that_is_named_a_receipt_is_no_turn_in_the_list(client: TurnClient, settings: Settings) -> None:
    async with working(settings, agent):
        await client.result(await client.enqueue("s", "hello", turn_id="m1"), timeout=SOON)
    await client.store.append("s", TapeEntry.event("turn.receipt", {"mine": 1}))
    listing = ("turn", "list", "s", "--last", "1", "--json")
    listed = await asyncio.to_thread(bub_redis, *listing, env=environment(settings))
    assert [turn["turn"] for turn in json_lines(listed)] == ["m1"]
