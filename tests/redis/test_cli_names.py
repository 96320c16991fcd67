"""Names by the rule of docs/design.md, section 2, through the command line and the client: each is kept apart from
every other, or refused with a clear line (cases 64 and 75)."""

import asyncio

import pytest

from bub_redis.errors import InvalidInput
from bub_redis.settings import Settings
from bub_redis.tape import Tape, TapeEntry
from bub_redis.turns import TurnClient
from tests.redis.commands import complaint, environment, invoke, json_lines

TAKEN = [
    "customer-42",
    "a/b",
    "../../etc/passwd",
    "{a}",
    "a}b{",
    "a b",
    "a%20b",
    "a:b",
    "*",
    "~",
    "__",
    "a__b",
    "-",
    "é",
    "e\u0301",
    "顾客",
    "👩‍👩‍👧",
    "\u2028",
    "A",
    "a",
    "x" * 200,
    "字" * 200,
]
REFUSED = {
    "": "must be a text of 1 to 200 characters",
    "x" * 201: "has 201 characters; at most 200 are taken",
    "a\nb": "holds a control character",
    "a\x00b": "holds a control character",
    "a\x7fb": "holds a control character",
    "a\x85b": "holds a control character",
    "\ud83d": "holds half of a character (a lone surrogate)",
}


def test_every_session_that_is_taken_has_a_tape_of_its_own(settings: Settings) -> None:
    env = environment(settings)

    async def write() -> None:
        async with TurnClient(settings) as client:
            for name in TAKEN:
                await Tape(name, client.store).append(TapeEntry.message({"role": "user", "content": name}))

    asyncio.run(write())
    for name in TAKEN:
        (entry,) = json_lines(invoke("tape", "show", "--json", "--", name, env=env))
        assert entry["payload"]["content"] == name
    listed = [tape["tape"] for tape in json_lines(invoke("tape", "ls", "--json", env=env))]
    assert sorted(listed) == sorted(TAKEN)


def test_every_turn_id_that_is_taken_is_a_turn_of_its_own(settings: Settings) -> None:
    env = environment(settings)
    names = [name for name in TAKEN if "~" not in name]
    for name in names:
        sent = invoke("turn", "enqueue", "s", f"I am {name}", f"--turn-id={name}", env=env)
        assert (sent.returncode, sent.stderr) == (0, "")
    listed = json_lines(invoke("turn", "list", "s", "--json", env=env))
    assert [(turn["turn"], turn["prompt"]) for turn in listed] == [(name, f"I am {name}") for name in names]
    assert len({turn["place"] for turn in listed}) == len(names)


def test_sessions_and_turns_never_share_a_key(settings: Settings) -> None:
    env = environment(settings)
    for session, turn in (("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("a", "b%2Fc")):
        assert invoke("turn", "enqueue", session, f"{session} {turn}", "--turn-id", turn, env=env).returncode == 0
    listed = json_lines(invoke("turn", "list", "--json", env=env))
    assert len(listed) == 4
    assert all(turn["prompt"] == f"{turn['session']} {turn['turn']}" for turn in listed)


@pytest.mark.parametrize(("name", "said"), REFUSED.items(), ids=range(len(REFUSED)))
def test_a_name_that_is_refused_is_refused_everywhere(settings: Settings, name: str, said: str) -> None:
    env = environment(settings)
    for command in (
        ("turn", "enqueue", "--", name, "hi"),
        ("turn", "enqueue", f"--turn-id={name}", "--", "s", "hi"),
        ("turn", "follow", "--", name, "m1"),
        ("turn", "follow", "--", "s", name),
        ("turn", "steer", f"--steer-id={name}", "--", "s", "m1", "hi"),
        ("turn", "list", "--", name),
        ("tape", "show", "--", name),
        ("tape", "parked", "--", name),
        ("tape", "tail", "-f", "--", name),
        ("chat", "--", name),
    ):
        refused = invoke(*command, env=env)
        assert refused.returncode == 2, command
        assert said in complaint(refused), command
    assert invoke("turn", "list", env=env).stdout == "no turn is open\n"


def test_the_marker_of_sidecars_is_refused_in_a_session(settings: Settings) -> None:
    for command in (("turn", "enqueue", "a__sidecar__spill", "hi"), ("tape", "show", "a__sidecar__spill")):
        refused = invoke(*command, env=environment(settings))
        assert refused.returncode == 2
        assert "must not hold '__sidecar__'" in complaint(refused)


def test_the_marker_of_retries_is_refused_in_a_new_turn_and_taken_for_one_that_is_there(settings: Settings) -> None:
    refused = invoke("turn", "enqueue", "s", "hi", "--turn-id", "m1~2", env=environment(settings))
    assert refused.returncode == 2
    assert "must not hold '~': that marks the retry of a dead turn" in complaint(refused)
    assert invoke("turn", "follow", "s", "m1~2", env=environment(settings)).returncode == 3
    assert invoke("turn", "follow", "s", "m1~x", env=environment(settings)).returncode == 2


@pytest.mark.parametrize(("name", "said"), REFUSED.items(), ids=range(len(REFUSED)))
async def test_the_client_refuses_the_same_names(client: TurnClient, name: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        client.turn(name, "m1")
    assert said in str(caught.value)
    for work in (
        client.enqueue(name, "hi"),
        client.enqueue("s", "hi", turn_id=name),
        client.steer(client.turn("s", "m1"), "hi", steer_id=name),
    ):
        with pytest.raises(InvalidInput):
            await work


async def test_the_client_refuses_markers_too(client: TurnClient) -> None:
    for session, turn_id in (("a__sidecar__b", "m"), ("s", "m~2")):
        with pytest.raises(InvalidInput, match="must not hold"):
            await client.enqueue(session, "hi", turn_id=turn_id)
