"""What is written and read: entries of about a kilobyte, as conversations have them."""

import secrets
from collections.abc import Sequence

from bub_redis import RedisTapeStore, Tape, TapeEntry
from bub_redis.storage.lock import Committed
from bub_redis.tape.fork import Fork
from bub_redis.tape.store import Grant

_SENTENCE = (
    "Your order 4711 left the house on Tuesday – it is with the parcel service now, and the next word is theirs. "
)
TEXT = (_SENTENCE * 9)[:860]
"""Makes an entry of 1 KB, its meta and date included."""
SHORT = _SENTENCE[:80]


def message(text: str = TEXT) -> TapeEntry:
    """A message as a model's answer is recorded."""
    return TapeEntry.message({"role": "assistant", "content": text}, run_id="2f6c1d0b9a8e7f60")


def messages(count: int, text: str = TEXT) -> list[TapeEntry]:
    """So many messages."""
    return [message(text) for _ in range(count)]


async def granted(store: RedisTapeStore, tape: str) -> Grant:
    """The session, for one commit."""
    grant = await store.lock.grant(tape, secrets.token_hex(8), secret=secrets.token_hex(8))
    assert not isinstance(grant, Committed)
    return grant


async def forked(store: RedisTapeStore, tape: str) -> Fork:
    """A fork that waits to be filled and merged."""
    return await Fork.open(store, await granted(store, tape))


async def merge(fork: Fork, entries: Sequence[TapeEntry]) -> None:
    """What a turn does at its end, from Python objects to a receipt on the tape."""
    await fork.append(fork.grant.tape, *entries)
    await fork.merge("completed")


async def close_with_anchor(tape: Tape, behind: int) -> None:
    """End a tape with a receipt and an anchor that stands `behind` entries before its end."""
    async with tape.fork_tape() as fork:
        await fork.append(message(SHORT))
    async with tape.fork_tape() as fork:
        await fork.append(TapeEntry.anchor("topic", {"order": 4711}))
        # The receipt of this merge is the last of them.
        await fork.append(*messages(behind - 1))
