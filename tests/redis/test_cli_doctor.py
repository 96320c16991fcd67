"""`bub-redis doctor` and `config show`: what is wrong is found, named with its remedy, and nothing is changed."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bub_redis.cli.doctor.checks import lease_finding, server_findings
from bub_redis.settings import Settings, load_settings
from bub_redis.storage.client import ServerInfo
from bub_redis.storage.health import Health
from bub_redis.storage.rights import COMMANDS, UNTESTED
from bub_redis.testing import EmbeddedServer
from tests.redis.commands import complaint, environment, invoke

ROOT = Path(__file__).parents[2]
ACL = (ROOT / "deploy/users.acl").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server with the users of deploy/users.acl, and some with less."""
    acl = tmp_path_factory.mktemp("acl") / "users.acl"
    bub = ACL.splitlines()[1]
    acl.write_text(
        ACL
        + bub.replace("user bub ", "user poor ").replace("+xadd ", "").replace("+client|unblock ", "")
        + "\n"
        + bub.replace("user bub ", "user narrow ").replace("~arq:* ", "")
        + "\nuser none on >change-me -@all +info +ping +time +auth +hello +select\n",
        encoding="utf-8",
    )
    with EmbeddedServer(args=["--aclfile", str(acl)]) as started:
        yield started


def doctor(url: str, **variables: str) -> tuple[int, dict[str, dict[str, str]]]:
    finished = invoke("doctor", "--json", env=environment(None, BUB_REDIS_URL=url, **variables))
    assert finished.stderr == ""
    return finished.returncode, {finding["what"]: finding for finding in map(json.loads, finished.stdout.splitlines())}


def test_a_sound_server_with_the_least_rights(guarded: EmbeddedServer) -> None:
    code, found = doctor(f"unix://bub:change-me@{guarded.socket_path}")
    assert code == 0
    assert found["queue server"]["found"].endswith(f" at {guarded.url}")
    assert {finding["what"]: finding["level"] for finding in found.values() if finding["level"] != "ok"} == {
        "workers": "warning"
    }
    assert list(found) == [
        "settings",
        *(f"queue {what}" for what in ("server", "role", "persistence", "eviction", "memory", "clock", "rights")),
        "leases",
        "arq",
        "queue topology",
        "workers",
    ]


@pytest.mark.parametrize(
    ("user", "remedy"),
    [
        ("poor", "grant +client|unblock +xadd, or use deploy/users.acl"),
        ("narrow", "grant ~arq:*, or use deploy/users.acl"),
        ("none", "grant +multi, or use deploy/users.acl"),
    ],
)
def test_missing_rights_are_named_one_by_one(guarded: EmbeddedServer, user: str, remedy: str) -> None:
    code, found = doctor(f"unix://{user}:change-me@{guarded.socket_path}")
    assert code == 5
    assert found["queue rights"]["level"] == "problem"
    assert remedy in found["queue rights"]["remedy"]


def test_another_namespace_needs_rights_of_its_own(guarded: EmbeddedServer) -> None:
    code, found = doctor(f"unix://bub:change-me@{guarded.socket_path}", BUB_NAMESPACE="shop")
    assert code == 5
    assert found["queue rights"]["found"] == "the user may not touch keys like shop:*"
    assert found["queue rights"]["remedy"] == "grant ~shop:*, or use deploy/users.acl"


def test_the_acl_file_grants_what_is_needed_and_no_more() -> None:
    granted = [word.removeprefix("+") for word in ACL.splitlines()[1].split() if word.startswith("+")]
    assert sorted(granted) == sorted({*COMMANDS, *UNTESTED})


def test_every_command_of_the_scripts_is_granted() -> None:
    scripts = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "bub_redis").glob("*/scripts/*.lua"))
    called = {name.lower() for name in re.findall(r"(?:call|pcall)\('([A-Z]+)'", scripts)}
    assert sorted(called - set(COMMANDS)) == []


def test_trying_rights_runs_nothing(server: EmbeddedServer, settings: Settings) -> None:
    before = json.loads(invoke("queue", "--json", env=environment(settings)).stdout)
    invoke("doctor", env=environment(settings))
    assert json.loads(invoke("queue", "--json", env=environment(settings)).stdout) == before
    assert invoke("tape", "ls", env=environment(settings)).stdout == "there is no tape yet\n"


def test_a_server_that_may_drop_tapes_and_forgets_them() -> None:
    with EmbeddedServer(appendonly=False, args=["--maxmemory-policy", "allkeys-lru"]) as evicting:
        code, found = doctor(evicting.url)
    assert code == 5
    assert found["queue eviction"]["found"] == "allkeys-lru: it may drop tapes"
    assert found["queue eviction"]["remedy"].startswith("CONFIG SET maxmemory-policy noeviction")
    assert found["queue persistence"]["level"] == "problem"


def test_a_server_that_is_not_there_is_a_finding_and_both_sides_are_looked_at(server: EmbeddedServer) -> None:
    code, found = doctor("redis://127.0.0.1:1/0", BUB_TAPE_URL=server.url)
    assert code == 5
    assert found["queue server"]["found"].startswith("no answer from redis://127.0.0.1:1/0")
    assert found["tape rights"]["level"] == "ok"


def test_for_people_each_finding_is_a_line_with_its_remedy_below(settings: Settings) -> None:
    lines = invoke("doctor", env=environment(settings)).stdout.splitlines()
    assert lines[0] == "ok       settings           valid; given: redis_url, namespace"
    assert lines[-1] == "         → start one: bub-redis worker MODULE:ATTRIBUTE"


HEALTHY = Health(
    ServerInfo("Redis", "7.0.15", "noeviction", append_only=True),
    role="master",
    aof_ok=True,
    used_bytes=2**20,
    max_bytes=0,
    clock_ahead_s=0.0,
    median_trip_s=0.001,
    worst_trip_s=0.002,
)


@pytest.mark.parametrize(
    ("change", "what", "level", "found"),
    [
        ({}, "x role", "ok", "primary"),
        ({"role": "slave"}, "x role", "problem", "replica"),
        ({"aof_ok": False}, "x persistence", "problem", "the append-only file cannot be written"),
        ({"max_bytes": 2**21}, "x memory", "ok", "1.0 MiB used of 2.0 MiB"),
        ({"max_bytes": 2**20}, "x memory", "warning", "1.0 MiB used of 1.0 MiB"),
        ({"clock_ahead_s": 90.0}, "x clock", "warning", "90.000 s ahead of this machine's"),
        ({"clock_ahead_s": -90.0}, "x clock", "warning", "90.000 s behind this machine's"),
    ],
)
def test_what_a_server_says_of_itself(change: dict[str, object], what: str, level: str, found: str) -> None:
    findings = {finding.what: finding for finding in server_findings("x", "redis://db:1/0", replace(HEALTHY, **change))}  # type: ignore[arg-type]
    assert (findings[what].level, findings[what].found) == (level, found)
    assert bool(findings[what].remedy) == (level != "ok")


@pytest.mark.parametrize(("worst_s", "level"), [(0.01, "ok"), (1.0, "warning"), (4.0, "problem")])
def test_leases_need_round_trips_much_shorter_than_a_beat(worst_s: float, level: str) -> None:
    assert lease_finding(load_settings(), [replace(HEALTHY, worst_trip_s=worst_s)]).level == level


def test_config_show_tells_each_value_and_where_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text("bub_redis:\n  max_jobs: 5\n", encoding="utf-8")
    env = environment(BUB_HOME=str(tmp_path), BUB_REDIS_URL="redis://u:s3cret@db:7000/1", BUB_MODEL="openai:gpt-5")
    shown = invoke("config", "show", env=env)
    assert "s3cret" not in shown.stdout
    lines = shown.stdout.splitlines()
    assert lines[0] == f"{tmp_path}/config.yml is read"
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert rows["BUB_REDIS_URL"] == "redis://db:7000/1 BUB_REDIS_URL"
    assert rows["BUB_MAX_JOBS"] == f"5 bub_redis.max_jobs in {tmp_path}/config.yml"
    assert rows["BUB_TAPE_URL"] == "default"
    values = {
        row["name"]: row for row in map(json.loads, invoke("config", "show", "--json", env=env).stdout.splitlines())
    }
    lease = {"name": "lease_s", "variable": "BUB_LEASE_S", "value": 9.0, "source": None, "problem": None}
    assert values["lease_s"] == lease
    assert values["tape_url"]["value"] is None


WRONG = [
    ("BUB_REDIS_URL", "localhost:1", "BUB_REDIS_URL: 'localhost:1' is no Redis URL; write redis://"),
    ("BUB_MAX_JOBS", "abc", "BUB_MAX_JOBS is 'abc'; write a whole number from 1 to 1000"),
    ("BUB_LEASE_S", "1", "BUB_LEASE_S (1) must be at least 3 times BUB_BEAT_S (3)"),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG)
def test_a_wrong_setting_is_a_problem_that_the_doctor_tells(name: str, value: str, said: str) -> None:
    examined = invoke("doctor", "--json", env=environment(None, **{name: value}))
    (finding,) = map(json.loads, examined.stdout.splitlines())
    assert (examined.returncode, examined.stderr, finding["what"], finding["level"]) == (5, "", "settings", "problem")
    assert finding["found"].startswith(said)


@pytest.mark.parametrize(("name", "value", "said"), WRONG)
def test_config_show_marks_a_wrong_setting_among_the_others(name: str, value: str, said: str) -> None:
    env = environment(None, **{name: value, "BUB_NAMESPACE": "shop"})
    shown = invoke("config", "show", env=env)
    assert shown.returncode == 2
    assert complaint(shown).startswith(said)
    rows = {line.split()[0]: line.split()[1:] for line in shown.stdout.splitlines()}
    assert rows[name] == [value, name, "(WRONG)"]
    assert rows["BUB_NAMESPACE"] == ["shop", "BUB_NAMESPACE"]
    listed = map(json.loads, invoke("config", "show", "--json", env=env).stdout.splitlines())
    assert [row["variable"] for row in listed if row["problem"]] == [name]


def test_a_password_is_not_shown_beside_a_wrong_setting() -> None:
    env = environment(None, BUB_REDIS_URL="redis://:s3cret#x@db/0", BUB_MAX_JOBS="abc")
    for command in (("config", "show"), ("config", "show", "--json"), ("doctor",)):
        shown = invoke(*command, env=env)
        assert "s3cret" not in shown.stdout + shown.stderr


def test_a_mistyped_variable_is_a_warning(settings: Settings) -> None:
    _, found = doctor(settings.queue_address, BUB_MAX_JOB="5")
    warning = found["settings"]
    assert (warning["level"], warning["found"]) == ("warning", "BUB_MAX_JOB is no setting and is not read")
    assert warning["remedy"] == "did you mean BUB_MAX_JOBS?"


def test_an_unknown_key_in_the_file_stops_every_command(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text("bub_redis:\n  lease: 5\n", encoding="utf-8")
    for command in (("config", "show"), ("tape", "ls"), ("chat",), ("demo",)):
        refused: subprocess.CompletedProcess[str] = invoke(*command, env=environment(BUB_HOME=str(tmp_path)))
        assert refused.returncode == 2
        assert complaint(refused).endswith("did you mean `lease_s`?")
