"""What is wrong with a tape: its entries, read one after another, beside what its other keys say of them.

Entries are chained by digests, the keys beside them are not, so the entries are believed, and nothing that is read here
is taken for well formed. See docs/decisions/0045-repair-from-the-entries.md.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from bub_redis.errors import InvalidInput, TapeBlocked
from bub_redis.storage.client import RedisServer, raised
from bub_redis.storage.evidence import Told, latest_of, members, misplaced_in, number_of, state_of
from bub_redis.storage.heads import FIRST_PAGE_ENTRIES
from bub_redis.storage.keys import TapeKeys
from bub_redis.storage.lock import Committed
from bub_redis.storage.reader import next_page_entries
from bub_redis.storage.scanning import fields_of, keys_like
from bub_redis.tape.names import SIDECAR_MARKER, check_sidecar_name
from bub_redis.tape.receipt import DIGEST, LARGEST_NUMBER
from bub_redis.tape.stream_id import STREAM_ID, StreamId

_FIELDS = ("generation", "count", "last", "ms", "usage", "anchor")
_MAIN_FIELDS = ("receipt", "digest", "open", "opener")


@dataclass(frozen=True)
class Repair:
    """What is wrong with one tape, and is mended by a repair."""

    tape: str
    foreign: int = 0
    """Entries that were not written by bub-redis. They are set aside in the stream `…:tape:damaged`."""
    missing: int = 0
    """Entries that were committed and are not there any more. Nothing brings them back; the tape goes on without."""
    beyond: int = 0
    """Entries that look like ours and stand behind the last one that is known. They are kept: `state` may be older."""
    rebuilt: tuple[str, ...] = ()
    """What does not say what the entries say, of `anchors`, `latest`, `state`, `turns` and `fence`; `last id` for a
    stream that takes no entry any more, since one with a later id was in it."""
    renamed: tuple[str, ...] = ()
    """Keys of another type, which are set aside as `<key>:damaged:<ms>`."""

    @property
    def needed(self) -> bool:
        """Whether there is anything to mend."""
        return bool(self.foreign or self.missing or self.beyond or self.rebuilt or self.renamed)


@dataclass(frozen=True)
class Survey:
    """A tape as it is found, and what it should be."""

    keys: TapeKeys
    told: Told
    state: Mapping[str, str]
    """The fields of the tape in `state` as they should be; empty for one that should not be there."""
    marks: Mapping[str, str]
    """Turns whose mark is missing or cannot be read → the mark."""
    found: Repair
    odd: Mapping[str, str] = field(default_factory=dict)
    """Keys of another type → the type that each should have."""


class Surveyor:
    """Looks at the tapes of one server, and changes nothing. Everything raises Outage."""

    def __init__(self, server: RedisServer, namespace: str) -> None:
        self._server = server
        self._namespace = namespace

    async def tapes(self, tape: str) -> list[str]:
        """The tape, and those of its sidecars."""
        keys = TapeKeys(self._namespace, tape)
        names: set[str] = set()
        with self._server.outages():
            if not await self._odd({keys.state: "hash"}):
                fields = await self._server.reply("HKEYS", keys.state)
                names = {name.decode(errors="replace").partition("/")[0] for name in fields if b"/" in name}
        # Where `state` was lost only the keys themselves tell.
        before = keys.tape.removesuffix(":tape") + SIDECAR_MARKER
        for key in await keys_like(self._server, f"{before}*:tape", beside=keys.tape):
            names.add(key.removeprefix(before).removesuffix(":tape"))
        found = [tape]
        for name in sorted(names):
            # A field or key that somebody made up names no sidecar.
            with suppress(InvalidInput):
                found.append(f"{tape}{SIDECAR_MARKER}{check_sidecar_name(name)}")
        return found

    async def survey(self, tape: str, turns: Collection[str] = ()) -> Survey:
        """Read the tape whole; `turns` are turns that wait to be run on it."""
        keys = TapeKeys(self._namespace, tape)
        odd = await self._odd(await self._types(keys, turns))
        known = {} if keys.state in odd else await self._state(keys)
        told = await self._told(keys, odd)
        if misplaced := misplaced_in(told, known):
            told = await self._told(keys, odd, misplaced)
        if not (told.length or known or odd):
            return Survey(keys, told, {}, {}, Repair(tape))
        marks = await self._marks(keys, odd)
        missing_marks = {
            receipt.turn: Committed(receipt.id, receipt.status, receipt.steers)
            for receipt in told.receipts
            if receipt.turn not in marks
        }
        state = state_of(told, known, {**marks, **missing_marks}, main=not keys.sidecar)
        last = number_of(known, "last")
        beyond = sum(number > last for number in told.numbers) if "last" in known else 0
        # Where `state` was lost, every number up to the last was somebody's.
        once = number_of(known, "count") if "count" in known else int(state["last"])
        unfit = [name async for name in self._unfit_indexes(keys, odd, told)]
        if any(known.get(name, "") != value for name, value in state.items()):
            unfit.append("state")
        if missing_marks:
            unfit.append("turns")
        if told.receipts and await self._token(keys, odd) < max(receipt.token for receipt in told.receipts):
            unfit.append("fence")
        if keys.tape not in odd and await self._is_stuck(keys, state):
            unfit.append("last id")
        found = Repair(
            tape,
            foreign=len(told.foreign),
            missing=max(0, once - (told.count - beyond)),
            beyond=beyond,
            rebuilt=tuple(unfit),
            # Of a key that a sidecar shares its owner tells.
            renamed=tuple(key for key in odd if not (keys.sidecar and key == keys.state)),
        )
        return Survey(keys, told, state, {turn: mark.mark for turn, mark in missing_marks.items()}, found, odd)

    async def _unfit_indexes(self, keys: TapeKeys, odd: Collection[str], told: Told) -> AsyncIterator[str]:
        if ({} if keys.anchors in odd else await self._anchors(keys)) != members(told.anchors):
            yield "anchors"
        if ({} if keys.latest in odd else await self._latest(keys)) != latest_of(told.anchors):
            yield "latest"

    async def odd_session_keys(self, tape: str) -> tuple[str, ...]:
        """Lock and fence, as far as they are of another type or never end."""
        keys = TapeKeys(self._namespace, tape)
        return tuple(await self._odd({keys.lock: "string", keys.fence: "string"}))

    async def _types(self, keys: TapeKeys, turns: Collection[str]) -> dict[str, str]:
        """The keys of the tape → the type that each should have."""
        stream, anchors, latest = keys.written
        types = {stream: "stream", anchors: "zset", latest: "hash", keys.damaged: "stream", keys.state: "hash"}
        if keys.sidecar:
            return types
        types |= {keys.turns: "hash", keys.lock: "string", keys.fence: "string", keys.parked_turns: "zset"}
        types |= dict.fromkeys(keys.batches, "hash")
        opened = b""
        if not await self._odd({keys.state: "hash"}):
            with self._server.outages():
                opened = await self._server.reply("HGET", keys.state, "open") or b""
        for turn in {opened.decode(errors="ignore"), *turns} - {""}:
            types |= {keys.frames(turn): "stream", keys.journal(turn): "stream"}
        return types

    async def _odd(self, types: Mapping[str, str]) -> dict[str, str]:
        """Those of the keys that are of another type, or a lock that never ends."""
        with self._server.outages():
            asked = [(name, key) for key in types for name in ("TYPE", "TTL")]
            found = [raised(reply) for reply in await self._server.ask(*asked)]
        return {
            key: expected
            for (key, expected), there, ttl_s in zip(types.items(), found[::2], found[1::2], strict=True)
            if there.decode() not in {expected, "none"}
            or (key.endswith(":lock") and there.decode() == "string" and ttl_s == -1)
        }

    async def _told(self, keys: TapeKeys, odd: Collection[str], misplaced: Collection[str] = ()) -> Told:
        told = Told(misplaced)
        if keys.tape not in odd:
            async for stream_id, flat in self.entries(keys):
                told.add(stream_id, flat)
        return told

    async def entries(self, keys: TapeKeys) -> AsyncIterator[tuple[bytes, Sequence[bytes]]]:
        """All entries of a stream, whoever wrote them: id, and names and values as the server sends them."""
        start, count = "-", FIRST_PAGE_ENTRIES
        while True:
            with self._server.outages():
                page = await self._server.reply("XRANGE", keys.tape, start, "+", "COUNT", count)
            for stream_id, flat in page:
                yield stream_id, flat
            if len(page) < count:
                return
            start = f"({page[-1][0].decode()}"
            count = next_page_entries(count, sum(len(value) for _, flat in page for value in flat))

    async def _state(self, keys: TapeKeys) -> dict[str, str]:
        """The fields of the tape, without what none of us could have written."""
        names = _FIELDS if keys.sidecar else (*_FIELDS, *_MAIN_FIELDS)
        with self._server.outages():
            values = await self._server.reply("HMGET", keys.state, *keys.fields(*names))
        return {
            name: text
            for name, value in zip(names, values, strict=True)
            if value and _is_fit(name, text := value.decode(errors="replace"))
        }

    async def _anchors(self, keys: TapeKeys) -> dict[bytes, float]:
        with self._server.outages():
            flat = await self._server.reply("ZRANGE", keys.anchors, 0, -1, "WITHSCORES")
            return {member: float(score) for member, score in zip(flat[::2], flat[1::2], strict=True)}

    async def _latest(self, keys: TapeKeys) -> dict[bytes, bytes]:
        with self._server.outages():
            flat = await self._server.reply("HGETALL", keys.latest)
            return dict(zip(flat[::2], flat[1::2], strict=True))

    async def _marks(self, keys: TapeKeys, odd: Collection[str]) -> dict[str, Committed]:
        """What is committed, by the marks that can be read."""
        marks: dict[str, Committed] = {}
        if keys.sidecar or keys.turns in odd:
            return marks
        async for page in fields_of(self._server, keys.turns):
            for turn, mark in page:
                with suppress(TapeBlocked, UnicodeDecodeError):
                    marks[turn.decode()] = Committed.from_mark(mark)
        return marks

    async def _token(self, keys: TapeKeys, odd: Collection[str]) -> int:
        if keys.fence in odd:
            return 0
        with self._server.outages():
            fence = await self._server.reply("GET", keys.fence)
        token = (fence or b"").partition(b":")[0]
        return int(token) if token.isdigit() and len(token) < 17 else 0

    async def _is_stuck(self, keys: TapeKeys, state: Mapping[str, str]) -> bool:
        """Whether the stream refuses the id that the next entry would have."""
        with self._server.outages():
            there, about, (seconds, microseconds) = await self._server.ask(
                ("EXISTS", keys.tape), ("XINFO", "STREAM", keys.tape), ("TIME",)
            )
            if not raised(there):
                return False
            raised(about)
        last_id = dict(zip(about[::2], about[1::2], strict=True))[b"last-generated-id"].decode()
        next_ms = max(int(state["ms"]), int(seconds) * 1000 + int(microseconds) // 1000)
        return StreamId.of(last_id) >= (next_ms, int(state["last"]) + 1)


def _is_fit(name: str, value: str) -> bool:
    match name:
        case "receipt" | "usage" | "anchor":
            return STREAM_ID.fullmatch(value) is not None
        case "digest":
            return DIGEST.fullmatch(value) is not None
        case "open" | "opener":
            return True
        case _:
            return value.isascii() and value.isdecimal() and int(value) < LARGEST_NUMBER
