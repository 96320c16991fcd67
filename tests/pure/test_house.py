"""The house stands as docs/design.md draws it: imports go one way, public names are meant, scripts keep their rules."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bub_redis

ROOT = Path(__file__).parents[2]
FLOORS = {
    "bub_redis.errors": 0,
    "bub_redis.settings": 1,
    "bub_redis.faults": 0,
    "bub_redis.tasks": 0,
    "bub_redis.tape": 2,
    "bub_redis.storage": 3,
    "bub_redis.agent": 3,
    "bub_redis.turns": 4,
    "bub_redis.testing": 5,
    "worker": 6,
    "bub_redis.cli": 7,
}
SCRIPTS = sorted((ROOT / "bub_redis").glob("*/scripts/*.lua"))


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in ("bub_redis", "worker"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(name: str) -> str | None:
    return next((room for room in FLOORS if name == room or name.startswith(f"{room}.")), None)


def test_imports_go_one_way() -> None:
    for name, tree in modules():
        if (own := room(name)) is None:
            continue
        for target in filter(None, map(room, imported(tree))):
            assert target == own or FLOORS[target] < FLOORS[own], f"{name} imports {target}"


def test_only_three_rooms_know_redis() -> None:
    for name, tree in modules():
        if room(name) in {"bub_redis.storage", "bub_redis.turns", "worker"}:
            continue
        assert not [found for found in imported(tree) if found.split(".")[0] == "redis"], name


def test_only_turns_and_worker_know_arq() -> None:
    for name, tree in modules():
        if room(name) in {"bub_redis.turns", "worker"}:
            continue
        assert not [found for found in imported(tree) if found.split(".")[0] == "arq"], name


def test_only_the_client_module_builds_clients() -> None:
    for name, tree in modules():
        if name == "bub_redis.storage.client":
            continue
        calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert not [call for call in calls if re.search(r"\bRedis(\.from_url|\.from_pool)?$", call)], name


def test_only_settings_reads_the_environment() -> None:
    readers = {"bub_redis.settings", "bub_redis.faults"}
    for name, tree in modules():
        if name in readers or name.startswith("bub_redis.cli"):
            continue
        assert "os.environ" not in ast.unparse(tree), name


def test_the_design_names_every_module() -> None:
    """Of the rooms whose modules it lists."""
    page = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    for place in ("bub_redis/tape", "bub_redis/storage", "bub_redis/agent", "bub_redis/turns", "worker"):
        found = re.search(rf"^ *{Path(place).name}/ +(.*\n(?: {{24}}.*\n)*)", page, re.MULTILINE)
        assert found, place
        told = set(re.findall(r"[a-z_]+", found[1].partition(": ")[2].replace("scripts/*.lua", "")))
        assert told == {path.stem for path in (ROOT / place).glob("*.py")} - {"__init__"}, place


def test_the_public_names() -> None:
    assert sorted(bub_redis.__all__) == sorted(
        [
            "LAST_ANCHOR",
            "Agent",
            "AsyncTapeStore",
            "FileTapeStore",
            "InMemoryTapeStore",
            "RedisTapeStore",
            "SpillStore",
            "Tape",
            "TapeContext",
            "TapeEntry",
            "TapeQuery",
            "TapeRecorder",
            "TapeSidecar",
            "TapeStore",
            "ToolContext",
            "TurnClient",
            "default_tape_context",
            "errors",
            "events",
            "openai_messages",
            "session_tape_name",
            "tool",
        ]
    )
    assert all(hasattr(bub_redis, name) for name in bub_redis.__all__)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_tells_its_contract_and_never_touches_json(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    header = text[: text.index("\n\n")] if "\n\n" in text else text
    shared = script.stem in {"block", "bounds", "dispatch", "put", "typed"}
    if not shared:
        assert "-- ARGV:" in header and "-- Returns:" in header and "-- Cost:" in header
    for banned in ("cjson", "cmsgpack", "'KEYS'", "XINFO", "SCAN"):
        assert banned not in text


def test_no_script_trims_a_tape() -> None:
    """Case 138: a trim to about a length keeps more or less, by the size of entries. Only frames are trimmed."""
    trimming = {
        script.stem for script in SCRIPTS if re.search("MAXLEN|MINID|XTRIM", script.read_text(encoding="utf-8"))
    }
    assert trimming == {"frames"}
