"""Help that a newcomer understands, and completion: no server is asked."""

import subprocess
import sys
from importlib.metadata import version

import pytest
import typer.main

from bub_redis.cli.app import app
from bub_redis.cli.exits import SUMMARY, ExitCode, exit_code
from bub_redis.errors import BubError
from tests.redis.commands import environment, invoke

COMMANDS = {
    (): "chat config demo doctor queue tape turn worker",
    ("turn",): "cancel enqueue follow list result steer",
    ("tape",): "anchors delete handoff info ls parked reset search show tail verify",
    ("queue",): "dead retry waiting",
    ("config",): "show",
}


def leaves() -> list[tuple[str, ...]]:
    group = typer.main.get_group(app)
    return [
        (name, *rest)
        for name, command in group.commands.items()
        for rest in ([(sub,) for sub in command.commands] if hasattr(command, "commands") else [()])
    ]


@pytest.mark.parametrize("group", COMMANDS, ids=" ".join)
def test_the_help_lists_the_commands(group: tuple[str, ...]) -> None:
    shown = invoke(*group, "--help", env=environment(COLUMNS="120")).stdout
    for command in COMMANDS[group].split():
        assert f" {command} " in shown


@pytest.mark.parametrize("command", leaves(), ids=" ".join)
def test_every_command_tells_what_it_does_and_what_its_arguments_are(command: tuple[str, ...]) -> None:
    group = typer.main.get_group(app)
    found = group.commands[command[0]]
    for name in command[1:]:
        found = found.commands[name]  # type: ignore[attr-defined]
    assert found.help and found.help.splitlines()[0].endswith((".", "numbers."))
    assert all(getattr(parameter, "help", None) for parameter in found.params)


def test_without_a_command_the_help_is_shown() -> None:
    bare = invoke(env=environment())
    assert bare.returncode == 2
    assert "Usage: bub-redis" in bare.stdout


def test_the_exit_codes_are_in_the_help() -> None:
    assert " ".join(SUMMARY.split()[:3]) in " ".join(invoke("--help", env=environment(COLUMNS="200")).stdout.split())


def test_every_exit_code_is_in_the_summary() -> None:
    assert [code for code in ExitCode if f"· {code.value} " not in f"· {SUMMARY.partition(': ')[2]}"] == []


def test_the_version() -> None:
    shown = invoke("--version", env=environment())
    assert (shown.returncode, shown.stdout) == (0, f"bub-redis {version('bub-redis')}\n")


def test_every_error_of_ours_has_an_exit_code_of_the_table() -> None:
    kinds = [BubError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__module__ == "bub_redis.errors":
            assert exit_code(kind.__new__(kind)) in set(ExitCode) - {ExitCode.OK}


@pytest.mark.parametrize(("typed", "completed"), [("bub-redis tu", "turn"), ("bub-redis tape ta", "tail")])
def test_a_shell_completes_commands(typed: str, completed: str) -> None:
    env = environment(_BUB_REDIS_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(typed.split()) - 1))
    found = subprocess.run(
        [sys.executable, "-m", "bub_redis.cli"], env=env, capture_output=True, text=True, check=False
    )
    assert found.stdout.split() == [completed]
