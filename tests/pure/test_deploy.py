"""The examples in deploy/ fit the worker: it has the time to hand its turns back, and nothing is left to be guessed."""

import re
from pathlib import Path
from typing import Any

import yaml

from bub_redis.settings import Settings
from worker.worker import _HAND_BACK_S

DEPLOY = Path(__file__).parents[2] / "deploy"
NEEDED_S = Settings.model_fields["drain_s"].default + _HAND_BACK_S


def parsed(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def unit() -> dict[str, str]:
    """The settings of the systemd unit; the last one of a name."""
    text = (DEPLOY / "bub-redis-worker@.service").read_text(encoding="utf-8")
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def test_supervisors_wait_longer_than_a_worker_drains() -> None:
    worker = parsed("compose.yaml")["services"]["worker"]
    pod = parsed("kubernetes.yaml")["spec"]["template"]["spec"]
    graces_s = [worker["stop_grace_period"].removesuffix("s"), pod["terminationGracePeriodSeconds"]]
    graces_s.append(unit()["TimeoutStopSec"])
    assert all(float(grace_s) > NEEDED_S for grace_s in graces_s), graces_s


def test_a_worker_that_ended_is_started_again() -> None:
    assert parsed("compose.yaml")["services"]["worker"]["restart"] == "unless-stopped"
    assert unit()["Restart"] == "always"


def test_compose_publishes_the_server_to_its_own_machine_only() -> None:
    services = parsed("compose.yaml")["services"]
    assert services["redis"]["ports"] == ["127.0.0.1:${BUB_REDIS_PORT:-6379}:6379"]
    assert "ports" not in services["worker"]


def test_compose_takes_only_folders_that_are_there() -> None:
    """A relative path must exist: Compose makes an empty folder of one that does not."""
    for service in parsed("compose.yaml")["services"].values():
        for volume in service["volumes"]:
            source = re.sub(r":/.*$", "", volume)
            assert (DEPLOY / source).exists() or source == "redis-data" or source.startswith("${BUB_AGENT_DIR:?"), (
                source
            )


def test_a_name_that_is_needed_and_not_set_is_refused() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    for name in ("BUB_REDIS_PASSWORD", "BUB_AGENT", "BUB_AGENT_DIR"):
        assert f"${{{name}:?" in text, name
