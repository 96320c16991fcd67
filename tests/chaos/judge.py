"""What must hold when the dust has settled, read from the tapes and the keys."""

from collections import Counter

from bub_redis.settings import Settings
from bub_redis.storage import RedisServer
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.receipt import RECEIPT_EVENT, broken_receipts
from bub_redis.turns import TurnClient
from tests.chaos.plan import Sent
from tests.redis.audit import assert_no_half_pair

_KEPT = (":tape", ":tape:anchors", ":tape:anchors:latest", ":state", ":turns", ":fence")
_KEPT_ALONE = ("tapes", "dispatches", "open", "dead", "workers")
_KEPT_PREFIXES = ("receipt:",)


async def judge(client: TurnClient, settings: Settings, sent: dict[str, Sent]) -> list[str]:
    """What is wrong: on the tapes, and with the keys that are left."""
    wrong = [problem for session, asked in sent.items() for problem in await _tape(client, session, asked)]
    return wrong + await _keys(client, settings)


async def _tape(client: TurnClient, session: str, sent: Sent) -> list[str]:
    entries = await Tape(session, client.store).query().all()
    wrong = []
    if [entry.id for entry in entries] != list(range(1, len(entries) + 1)):
        wrong.append("the numbers have a gap")
    if broken := broken_receipts(entries):
        wrong.append(f"broken receipts: {broken}")
    try:
        assert_no_half_pair(entries)
    except AssertionError:
        wrong.append("a half pair")
    committed = [entry.payload["data"]["turn"] for entry in entries if entry.payload.get("name") == RECEIPT_EVENT]
    wrong += _turns(committed, sent)
    wrong += _messages(entries, committed, sent)
    return [f"{session}: {problem}" for problem in wrong]


def _turns(committed: list[str], sent: Sent) -> list[str]:
    """Every turn that was accepted is there once, in the order in which it was sent."""
    wrong = [f"turn {turn} is there {count} times" for turn, count in Counter(committed).items() if count > 1]
    expected = [turn for turn in sent.prompts if turn not in sent.cancelled]
    found = [turn for turn in committed if turn in sent.prompts]
    if found != expected:
        wrong.append(f"turns {found} instead of {expected}")
    return wrong


def _messages(entries: list[TapeEntry], committed: list[str], sent: Sent) -> list[str]:
    """Every steering message is there once, in its turn or as a turn of its own, if it was not cancelled unused."""
    said = Counter(entry.text for entry in entries if entry.kind == "message" and entry.payload.get("role") == "user")
    return [
        f"message {steer} is there {said[text]} times"
        for steer, text in sent.steers.items()
        if said[text] != (steer not in sent.unused)
    ]


async def _keys(client: TurnClient, settings: Settings) -> list[str]:
    """No key is left that the key table of docs/design.md does not name as kept, or that has no TTL."""
    wrong = []
    for side in {client.server, client.store.server}:
        async with side.primaries() as servers:
            wrong += [problem for server in servers for problem in await _keys_of(server, settings)]
    return wrong


async def _keys_of(server: RedisServer, settings: Settings) -> list[str]:
    commands = server.commands
    wrong = []
    async for raw in commands.scan_iter("*"):
        key = raw.decode()
        own = key.removeprefix(f"{settings.namespace}:")
        kept = own.endswith(_KEPT) or own in _KEPT_ALONE or own.startswith(_KEPT_PREFIXES)
        if not kept and await commands.pttl(raw) == -1:
            wrong.append(f"key left without a TTL: {key}")
    return wrong
