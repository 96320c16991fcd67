"""Settings: variables, then the file, then defaults; what is wrong is named with the place where it was given."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from bub_redis.errors import ConfigError
from bub_redis.settings import (
    Settings,
    WrongSettings,
    config_path,
    given_settings,
    load_settings,
    mistyped_variables,
    setting_source,
)
from bub_redis.storage.address import masked
from bub_redis.storage.client import RedisServer
from bub_redis.turns import TurnClient

ROOT = Path(__file__).parents[2]
SECRET = "s3cret"  # noqa: S105 - it must not be seen anywhere


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUB_HOME", str(tmp_path))
    return tmp_path


def write(home: Path, text: str) -> None:
    (home / "config.yml").write_text(text, encoding="utf-8")


def test_an_override_wins_over_a_variable_that_over_the_file_and_that_over_the_default(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings().max_jobs == 20
    write(home, "bub_redis:\n  max_jobs: 5\n")
    assert load_settings().max_jobs == 5
    monkeypatch.setenv("BUB_MAX_JOBS", "6")
    assert load_settings().max_jobs == 6
    assert load_settings(max_jobs=7).max_jobs == 7


def test_an_empty_variable_is_as_good_as_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, "bub_redis:\n  namespace: ours\n")
    monkeypatch.setenv("BUB_NAMESPACE", "")
    assert load_settings().namespace == "ours"


def test_the_file_is_that_of_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUB_HOME")
    monkeypatch.setenv("HOME", "/nonexistent")
    assert config_path() == Path("/nonexistent/.bub/config.yml")
    assert load_settings().home == Path("/nonexistent/.bub")


def test_sections_and_variables_of_bub_are_left_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, "model: openai:gpt-5\nmax_steps: 3\ntelegram:\n  token: x\nspill:\n  threshold: 100\n  other: 1\n")
    monkeypatch.setenv("BUB_TELEGRAM_TOKEN", "x")
    monkeypatch.setenv("BUB_MAX_STEPS", "3")
    settings = load_settings()
    assert (settings.model, settings.spill_threshold) == (None, 100)


def test_the_spill_threshold_has_bubs_names(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, "spill:\n  threshold: 100\n")
    monkeypatch.setenv("BUB_SPILL_THRESHOLD", "0")
    assert load_settings().spill_threshold == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bub_redis:\n  max_job: 5\n", "`bub_redis.max_job` in {path} is unknown; did you mean `max_jobs`?"),
        ("bub_redis:\n  BUB_LEASE_S: 5\n", "`bub_redis.BUB_LEASE_S` in {path} is unknown; did you mean `lease_s`?"),
        ("bub_redis:\n  qqqq: 5\n", "`bub_redis.qqqq` in {path} is unknown; known are redis_url, tape_url,"),
        ("bub_redis:\n  home: /x\n", "`bub_redis.home` cannot be set in {path}, which is found by it; set BUB_HOME"),
        ("bub_redis:\n  spill_threshold: 1\n", "is unknown; write it as `spill.threshold`, as Bub does"),
        ("bub_redis:\n  max_jobs: 0\n", "bub_redis.max_jobs in {path} is 0; write a whole number from 1 to 1000"),
        ("bub_redis:\n  lease_s: 1\n", "bub_redis.lease_s in {path} (1) must be at least 3 times BUB_BEAT_S (3)"),
        ("spill:\n  threshold: -1\n", "spill.threshold in {path} is -1; write a whole number of at least 0"),
        ("bub_redis: 5\n", "`bub_redis:` in {path} must hold `name: value` pairs below it"),
        ("- a\n", "{path} must hold sections"),
        ("bub_redis:\n  a: [\n", "{path} is no YAML (line "),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_its_place(home: Path, text: str, said: str) -> None:
    write(home, text)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert said.format(path=home / "config.yml") in str(caught.value)


def test_a_file_that_is_not_utf8_or_not_a_file(home: Path) -> None:
    (home / "config.yml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="is no YAML"):
        load_settings()
    (home / "config.yml").unlink()
    (home / "config.yml").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        load_settings()


@pytest.mark.parametrize("text", ["", "# nothing\n", "bub_redis:\n", "bub_redis:\n  model:\n", "spill: 5\n"])
def test_an_empty_file_section_or_value_sets_nothing(home: Path, text: str) -> None:
    write(home, text)
    assert load_settings() == load_settings(home=home)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"lease_s": 8.9}, "BUB_LEASE_S (8.9) must be at least 3 times BUB_BEAT_S (3)"),
        ({"reconcile_s": 10}, "BUB_RECONCILE_S (10) must not exceed BUB_LEASE_S (9)"),
        ({"loop_stall_s": 3}, "BUB_LOOP_STALL_S (3) must exceed BUB_BEAT_S (3)"),
        ({"turn_limit_s": 8}, "BUB_TURN_LIMIT_S (8) must be at least BUB_LEASE_S (9)"),
        ({"drain_s": 1801}, "BUB_DRAIN_S (1801) must not exceed BUB_TURN_LIMIT_S (1800)"),
        ({"max_open_turns": 99}, "BUB_MAX_SESSION_TURNS (100) must not exceed BUB_MAX_OPEN_TURNS (99)"),
    ],
)
def test_relations_between_settings(overrides: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(**overrides)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("BUB_MAX_JOBS", "abc", "BUB_MAX_JOBS is 'abc'; write a whole number from 1 to 1000"),
        ("BUB_MAX_STEERS", "0", "BUB_MAX_STEERS is '0'; write a whole number of at least 1"),
        ("BUB_LEASE_S", "-1", "BUB_LEASE_S is '-1'; write a number above 0, at most 31622400"),
        ("BUB_NAMESPACE", "a b", "BUB_NAMESPACE is 'a b'; write 1 to 32 of A-Z a-z 0-9 _ -"),
        ("BUB_FORCE", "perhaps", "BUB_FORCE is 'perhaps'; write true or false"),
    ],
)
def test_a_wrong_value_is_named_with_what_to_write(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(WrongSettings) as caught:
        load_settings()
    assert str(caught.value) == said
    assert list(caught.value.problems) == [name.removeprefix("BUB_").lower()]


def test_a_wrong_url_in_the_file_is_not_shown(home: Path) -> None:
    write(home, f"bub_redis:\n  redis_url: [{SECRET}]\n")
    with pytest.raises(ConfigError, match=r"is no text; write a URL, such as redis://localhost:6379/0") as caught:
        load_settings()
    assert SECRET not in str(caught.value)


def test_a_variable_that_looks_like_one_of_ours_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUB_REDIS_URI", "BUB_MAX_JOB", "BUB_MODEL", "BUB_MAX_STEPS", "BUB_TELEGRAM_TOKEN", "BUB_FAULTS"):
        monkeypatch.setenv(name, "x")
    assert mistyped_variables() == {"BUB_MAX_JOB": "BUB_MAX_JOBS", "BUB_REDIS_URI": "BUB_REDIS_URL"}


def test_where_each_setting_is_given(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, "bub_redis:\n  lease_s: 12\n  max_jobs: 3\nspill:\n  threshold: 1\n")
    monkeypatch.setenv("BUB_MAX_JOBS", "4")
    path = home / "config.yml"
    assert given_settings() == {
        "home": "BUB_HOME",
        "max_jobs": "BUB_MAX_JOBS",
        "lease_s": f"bub_redis.lease_s in {path}",
        "spill_threshold": f"spill.threshold in {path}",
    }
    assert setting_source("agent") == "BUB_AGENT"


async def test_a_password_is_in_no_repr_and_in_no_log(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"redis://user:{SECRET}@127.0.0.1:1/0?password={SECRET}"
    settings = load_settings(redis_url=url, tape_url=url)
    async with TurnClient(settings) as client:
        structlog.get_logger().info("all", settings=settings, client=client, server=client.server, store=client.store)
        logging.getLogger("test").warning("%r %s %r", settings, settings, client.server.commands)
        shown = f"{settings!r} {settings} {client.server!r} {client.server.commands!r} {client.store!r} {client!r}"
    out, err = capsys.readouterr()
    assert SECRET not in shown + out + err
    assert settings.queue_address == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:p@host:7000/2?x=y", "redis://host:7000/2"),
        ("redis://:p@host", "redis://host:6379"),
        ("rediss://[::1]:7000/0", "rediss://[::1]:7000/0"),
        ("unix://u:p@/run/r.sock?db=1", "unix:///run/r.sock"),
        (f"redis://u:{SECRET}#x@host:1/0", "redis://***"),
        (f"redis://host:{SECRET}/0", "redis://***"),
        ("redis://[::1/0", "redis://***"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize("url", ["http://host", f"redis://u:{SECRET}#x@host:1/0", "", "host:6379"])
def test_what_is_no_url_says_how_one_is_written(url: str) -> None:
    with pytest.raises(ConfigError, match="is no Redis URL; write redis://") as caught:
        RedisServer(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"redis://host:{SECRET}/0", "(its port is no number from 1 to 65535); write redis://"),
        ("redis://host:99999/0", "(its port is no number from 1 to 65535); write redis://"),
        ("redis://[::1/0", "(an IPv6 address stands between [ and ]); write redis://"),
        ("redis-sentinel://host:port/0?service=a", "(a sentinel is named as host or host:port); write redis://"),
        (f"redis://:{SECRET}#x@host/0", "in a password @ # / : ? must be percent-encoded (# is %23)"),
        # A part of the password would be the port of this machine.
        (f"redis://:12#{SECRET}@host/0", "in a password @ # / : ? must be percent-encoded (# is %23)"),
    ],
)
def test_what_is_wrong_with_a_url_is_named_without_any_of_it(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisServer(url)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["unix:///run/a@b.sock", f"redis://host/0?password={SECRET}@x"])
def test_a_url_that_cannot_be_shown_may_be_one(url: str) -> None:
    assert RedisServer(url).address.endswith("***")


def test_every_setting_tells_what_it_is() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_the_page_of_settings_is_current() -> None:
    """docs/settings.md is generated: `python docs/settings.py` writes it."""
    written = subprocess.run(
        [sys.executable, "docs/settings.py", "--print"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs/settings.md").read_text(encoding="utf-8") == written


def test_help_waits_for_nothing_that_it_does_not_need() -> None:
    heavy = {"redis", "arq", "republic", "pydantic", "structlog", "httpx2", "yaml"}
    program = f"import bub_redis.cli.app, sys; sys.exit(' '.join({heavy} & set(sys.modules)) or 0)"
    subprocess.run([sys.executable, "-c", program], check=True)
