"""Fixtures shared by all tests."""

import gc
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from unittest import mock

import pytest

from bub_redis.settings import Settings, load_settings
from bub_redis.testing import EmbeddedServer
from bub_redis.turns import TurnClient


@pytest.fixture(scope="session", autouse=True)
def nobodys_settings() -> Iterator[None]:
    """No test reads the variables or the config file of whoever runs it."""
    with mock.patch.dict(os.environ):
        for name in list(os.environ):
            if name.startswith("BUB_") and not name.startswith("BUB_TEST_"):
                del os.environ[name]
        os.environ["BUB_HOME"] = "/nonexistent/home"
        yield


@pytest.fixture
def collector_off() -> Iterator[None]:
    """What is in cycles stays while the test runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """One server for the whole run: the bundled Valkey, or the binary that BUB_TEST_SERVER names."""
    with EmbeddedServer(binary=os.environ.get("BUB_TEST_SERVER"), appendonly=False) as started:
        yield started


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses, so that all share one server."""
    return f"t{secrets.token_hex(6)}"


@pytest.fixture
def settings(server: EmbeddedServer, namespace: str) -> Settings:
    """Settings for the real server, with durations made short."""
    return load_settings(
        redis_url=server.url,
        namespace=namespace,
        lease_s=0.9,
        beat_s=0.2,
        reconcile_s=0.05,
        waiting_grace_s=0.5,
        drain_s=0.0,
    )


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[TurnClient]:
    """A client as a web backend holds it."""
    async with TurnClient(settings) as opened:
        yield opened


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the order's seed where `-q` hides the header: `pytest --randomly-seed=…` repeats it."""
    seed = config.getoption("randomly_seed", default=None)
    if seed is not None and terminalreporter.verbosity < 0:
        terminalreporter.write_line(f"order: --randomly-seed={seed}")
