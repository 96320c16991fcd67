"""Payloads pass through every script as bytes: what no JSON reader of a server takes arrives as it was sent."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from bub_redis.storage import RedisTapeStore
from bub_redis.storage.commit import Writer
from bub_redis.storage.journal import Journal, Record
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape.block import Block
from bub_redis.tape.entry import StoredEntry
from bub_redis.tape.fork import Fork
from bub_redis.testing import EmbeddedServer

PAYLOADS = {
    "nested over 1,000 deep": b'{"v":' + b"[" * 1500 + b"]" * 1500 + b"}",
    "an escaped half character": b'{"v":"\\ud83d"}',
    "NaN": b'{"v":NaN}',
    "a large whole number": b'{"v":9007199254740993}',
    "no JSON": b'\x00\xff{"',
}


@pytest.fixture(params=["fakeredis", "server"])
async def store(
    request: pytest.FixtureRequest, server: EmbeddedServer, fake_url: str, namespace: str
) -> AsyncIterator[RedisTapeStore]:
    """A store on each server that runs scripts."""
    url = fake_url if request.param == "fakeredis" else server.url
    async with RedisTapeStore.from_url(url, namespace=namespace) as opened:
        yield opened


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
async def test_a_payload_passes_every_script_unread(store: RedisTapeStore, payload: bytes) -> None:
    """Cases 135 and 136: bootstrap, append, journal, spill, merge with a sidecar, and a reset that keeps it."""
    notes = "t__sidecar__notes"
    block = Block((StoredEntry(b"message", payload, payload, b"2026-01-01"),))
    writer = Writer(store.server, store.namespace)
    await writer.bootstrap("t", block)
    seen = await store.head("t")
    await writer.append("t", block)
    async with store.session("t", "run-1", 1.0) as grant:
        journal = Journal(store.server, store.namespace, grant)
        await journal.write([Record("t", block.entries[0])])
        later = Journal(store.server, store.namespace, replace(grant, has_journal=True))
        assert [record.stored for record in await later.read()] == [*block.entries]
        await writer.append_fenced(grant, notes, await store.head(notes), block)
        fork = await Fork.open(store, grant, sidecars=[notes])
        await fork.append(notes)
        commit = await fork.prepare("completed")
        main = replace(commit.main, block=block)
        sidecar = replace(main, tape=notes, head=await store.head(notes))
        await store.commit(replace(commit, main=main, sidecars=(sidecar,)))
    assert await payloads(store, "t") == [payload] * 3
    assert await payloads(store, notes) == [payload] * 2
    # The receipt is that of now, as it must be, and the last entry an earlier one: what came behind it is kept.
    await store.reset("t", seen=replace(await store.head("t"), last=seen.last, last_ms=seen.last_ms))
    assert await payloads(store, "t") == [payload] * 2


async def payloads(store: RedisTapeStore, tape: str) -> list[bytes]:
    """What the stream holds, but for our own events."""
    page = await store.server.commands.xrange(TapeKeys(store.namespace, tape).tape)
    return [fields[b"payload"] for _, fields in page if fields[b"kind"] == b"message"]
