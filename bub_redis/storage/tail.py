"""Reading on as a tape grows."""

from collections.abc import AsyncIterator

from bub_redis.storage.client import BLOCK_S
from bub_redis.storage.heads import stored_in
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.store import RedisTapeStore
from bub_redis.tape.entry import TapeEntry
from bub_redis.tape.names import check_tape_name
from bub_redis.tape.stream_id import StreamId

_PAGE_ENTRIES = 200


async def tail_tape(store: RedisTapeStore, tape: str, after: str) -> AsyncIterator[tuple[str, TapeEntry]]:
    """The entries of a tape behind the stream id `after`, with their stream ids, as they are committed; without end.

    May be asked for again behind the last id: nothing is missed and nothing comes twice, also across a reset, since the
    ids of a tape only grow. What cannot be read is left out. Raises InvalidInput, TapeBlocked, Outage.
    """
    server, key = store.server, TapeKeys(store.namespace, check_tape_name(tape)).tape
    while True:
        with server.outages():
            reply = await server.blocking_reply(
                *("XREAD", "COUNT", _PAGE_ENTRIES, "BLOCK", BLOCK_S * 1000, "STREAMS", key, after)
            )
        for _, page in reply or ():
            for raw_id, fields in page:
                after = raw_id.decode()
                if (stored := stored_in(fields)) is None:
                    continue
                try:
                    entry = TapeEntry.decode(StreamId.of(after).number, stored)
                except (ValueError, RecursionError):
                    continue
                yield after, entry
