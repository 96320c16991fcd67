"""Every bad input through the real command line: one clear line, a remedy, an exit code, and nothing lost."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from bub_redis.settings import Settings, load_settings
from bub_redis.tape import Tape, TapeEntry
from bub_redis.testing import EmbeddedServer
from bub_redis.turns import TurnClient
from tests.redis.agents import agent
from tests.redis.commands import bub_redis, complaint, environment, invoke, start
from tests.redis.workers import working

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(settings: Settings) -> Cli:
    return lambda *arguments: invoke(*arguments, env=environment(settings))


@pytest.mark.parametrize("option", ["--state", "--options", "--metadata"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
        ("hello", 'is not JSON (Expecting value: line 1 column 1 (char 0)); write for example \'{"key": "value"}\''),
        ("[1]", "must be a JSON object, not list; write for example"),
        ("null", "must be a JSON object, not NoneType"),
        ("[" * 100_000, "is nested too deeply"),
    ],
)
def test_what_is_no_json_object(cli: Cli, option: str, value: str, said: str) -> None:
    refused = cli("turn", "enqueue", "s", "hi", option, value)
    assert refused.returncode == 2
    assert f"{option} {said}" in complaint(refused)
    assert cli("turn", "list").stdout == "no turn is open\n"


@pytest.mark.parametrize("value", ['{"a": NaN}', '{"a": Infinity}'])
def test_what_json_does_not_have(cli: Cli, value: str) -> None:
    """Case 69: refused, never stored."""
    refused = cli("turn", "enqueue", "s", "hi", "--state", value)
    assert refused.returncode == 2
    assert complaint(refused)
    assert cli("turn", "list").stdout == "no turn is open\n"


@pytest.mark.parametrize(
    "arguments", [("x" * (1024 * 1024),), ("hi", "--state", json.dumps({"a": "x" * (1024 * 1024)}))]
)
def test_prompt_and_state_too_large_carry_the_numbers(cli: Cli, arguments: tuple[str, ...]) -> None:
    refused = cli("turn", "enqueue", "s", *arguments)
    assert refused.returncode == 2
    assert "bytes; at most 1048576 are taken" in complaint(refused)
    assert cli("turn", "list").stdout == "no turn is open\n"


def test_more_turns_than_a_session_may_have(settings: Settings) -> None:
    env = environment(settings, BUB_MAX_SESSION_TURNS="1")
    assert invoke("turn", "enqueue", "s", "one", env=env).returncode == 0
    refused = invoke("turn", "enqueue", "s", "two", env=env)
    assert refused.returncode == 5
    assert complaint(refused) == "session 's' has 1 turns that have not ended; at most 1 are taken"


@pytest.mark.parametrize("command", ["follow", "result", "cancel"])
def test_an_unknown_turn(cli: Cli, command: str) -> None:
    refused = cli("turn", command, "s", "m1")
    assert refused.returncode == 3
    assert complaint(refused) == "session 's' has no turn 'm1'"


def test_a_place_to_go_on_that_is_none(cli: Cli) -> None:
    refused = cli("turn", "follow", "s", "m1", "--after", "yesterday")
    assert refused.returncode == 2
    assert complaint(refused) == "'yesterday' is no frame's id; --json shows them, such as 1764501234567-0"


def test_stdin_that_is_not_utf8(settings: Settings) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "bub_redis.cli", "turn", "enqueue", "s", "-"],
        env=environment(settings),
        input=b"\xff\xfe",
        capture_output=True,
        check=False,
    )
    assert refused.returncode == 2
    assert refused.stderr == b"error: what comes on stdin is not UTF-8\n"


def test_half_characters_in_arguments(settings: Settings) -> None:
    """Cases 65 and 185: bytes that are no UTF-8 come in as lone surrogates; a name may not have them."""
    refused = bub_redis("turn", "enqueue", "s\udcff", "hi", env=environment(settings))
    assert refused.returncode == 2
    assert "half of a character" in complaint(refused)
    sent = bub_redis("turn", "enqueue", "s", "hi \udcff", env=environment(settings))
    assert (sent.returncode, sent.stderr) == (0, "")


async def test_a_server_that_goes_away_while_a_turn_is_followed() -> None:
    """It is said once, and when the server is there again the turn is followed from where it was left."""
    with EmbeddedServer() as own:
        settings = load_settings(redis_url=own.url, drain_s=0.0)
        enqueue = ("turn", "enqueue", "s", "wait 2", "--turn-id", "m1", "--follow")
        async with working(settings, agent):
            with start(*enqueue, env=environment(settings)) as following:
                assert following.stdout is not None and following.stderr is not None
                while "wait(" not in await asyncio.to_thread(following.stdout.readline):
                    pass
                own.kill()
                waiting = await asyncio.to_thread(following.stderr.readline)
                assert waiting.startswith("waiting for the server: no answer from unix://")
                own.start()
                shown, said = await asyncio.to_thread(following.communicate)
        assert (following.returncode, said) == (0, "")
        assert shown.splitlines()[-1].startswith("completed (entries ")


@pytest.mark.parametrize(
    "command",
    [("tape", "show", "s"), ("tape", "show", "s", "--json"), ("tape", "search", "s", "x", "--limit", "300")],
)
def test_a_pipe_that_closes(settings: Settings, command: tuple[str, ...]) -> None:
    async def fill() -> None:
        async with TurnClient(settings) as client:
            texts = (TapeEntry.message({"role": "user", "content": f"x {n} " * 200}) for n in range(300))
            await Tape("s", client.store).append(*texts)

    asyncio.run(fill())
    with start(*command, env=environment(settings)) as reading:
        assert reading.stdout is not None and reading.stderr is not None
        reading.stdout.readline()
        reading.stdout.close()
        assert reading.stderr.read() == ""
    assert reading.returncode == 141


def into(command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command line with redirections."""
    line = f'exec "$0" -m bub_redis.cli {command}'
    return subprocess.run(
        ["/bin/sh", "-c", line, sys.executable], env=env, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("command", ["--help", "config show", "config show --json", "queue --json"])
@pytest.mark.parametrize(
    ("where", "reason"),
    [(">/dev/full", "No space left on device"), (">&-", "stdout is closed")],
    ids=["full", "closed"],
)
def test_output_that_cannot_be_written(settings: Settings, command: str, where: str, reason: str) -> None:
    failed = into(f"{command} {where}", environment(settings))
    assert failed.returncode == 1
    assert complaint(failed) == f"the output cannot be written ({reason})"


def test_closed_streams_stop_no_command_that_does_not_need_them(settings: Settings) -> None:
    assert into("turn enqueue s hi --turn-id m1 2>&- <&-", environment(settings)).returncode == 0


@pytest.mark.parametrize("command", ["turn enqueue s -", "turn steer s x -", "chat s"])
def test_a_closed_stdin_is_named_where_it_is_needed(settings: Settings, command: str) -> None:
    refused = into(f"{command} <&-", environment(settings))
    assert refused.returncode == 2
    assert "closed" in complaint(refused)


@pytest.mark.parametrize("command", ["--help", "turn --help", "config show", "queue"])
def test_a_reader_that_left_before_anything_was_said(settings: Settings, command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        left = subprocess.run(
            [sys.executable, "-m", "bub_redis.cli", *command.split()],
            env=environment(settings),
            stdout=output,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (left.returncode, left.stderr) == (141, b"")


def test_a_search_for_nothing_is_wrong_usage(cli: Cli) -> None:
    refused = cli("tape", "search", "s", "")
    assert refused.returncode == 2
    assert complaint(refused).startswith("there is nothing to find in an empty text; ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense",), "No such command 'nonsense'; see `bub-redis --help`"),
        (("turn", "nonsense"), "No such command 'nonsense'; see `bub-redis turn --help`"),
        (("tape", "show"), "Missing argument 'SESSION'; see `bub-redis tape show --help`"),
        (("tape", "show", "s", "--last", "0"), "Invalid value for '--last': "),
        (("turn", "result", "s", "m", "--wait", "soon"), "Invalid value for '--wait': it must be a valid number; see"),
        (("turn", "result", "s", "m", "--wait", "-1"), "'--wait': it must be greater than or equal to 0; see `bub-"),
        (("turn", "result", "s", "m", "--wait"), "requires an argument; see `bub-redis turn result --help`"),
        (("turn", "follow", "s", "m", "--after"), "requires an argument; see `bub-redis turn follow --help`"),
        (("turn", "list", "--nonsense"), "No such option: --nonsense; see `bub-redis turn list --help`"),
    ],
)
def test_wrong_usage_names_the_help_to_read(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    refused = cli(*arguments)
    assert refused.returncode == 2
    assert said in complaint(refused)
