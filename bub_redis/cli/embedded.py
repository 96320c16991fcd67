"""The embedded server of a home: its data in `$BUB_HOME/server`, found there by every command while it runs."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from bub_redis.errors import ConfigError, Conflict
from bub_redis.settings import Settings, load_settings
from bub_redis.testing import EmbeddedServer

_FOLDER: Final = "server"
_SOCKET_FILE: Final = "socket"
"""In that folder: the path of the server's socket."""
_PROBE_LIMIT_S: Final = 1.0
_START_LIMIT_S: Final = 5.0
_PROBE_INTERVAL_S: Final = 0.05


def command_settings(**overrides: object) -> Settings:
    """The settings of a command: where no server is named, that of the home if it runs. Raises ConfigError."""
    settings = load_settings(**overrides)
    if settings.model_fields_set.isdisjoint({"redis_url", "tape_url"}) and (url := running_url(settings.home)):
        return load_settings(**{**overrides, "redis_url": url})
    return settings


def running_url(home: Path) -> str | None:
    """The URL of the home's server; None if none runs."""
    try:
        path = (home / _FOLDER / _SOCKET_FILE).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_LIMIT_S)
        try:
            probe.connect(path)
        except OSError:
            # It was killed and could not take the file along.
            return None
    return f"unix://{quote(path)}"


def listens(url: str) -> bool:
    """Whether anything listens where a `redis://` URL leads to; asked once, where a client would try again."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "localhost", parts.port or 6379), _PROBE_LIMIT_S).close()
    except OSError:
        return False
    return True


@contextmanager
def serving(home: Path) -> Iterator[str | None]:
    """Start the home's server and stop it at the end; its URL, or None if another process has just started it.

    Raises ConfigError if it cannot be started, also for want of room for its data.
    """
    server = _started(home)
    if server is None:
        _wait_for_other(home)
        yield None
        return
    try:
        yield server.url
    finally:
        with suppress(OSError):
            (home / _FOLDER / _SOCKET_FILE).unlink()
        server.stop()


def _started(home: Path) -> EmbeddedServer | None:
    folder = home / _FOLDER
    server = EmbeddedServer(data_dir=folder)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        server.start()
        (folder / _SOCKET_FILE).write_text(str(server.socket_path), encoding="utf-8")
    except Conflict:
        return None
    except OSError as error:
        server.stop()
        raise ConfigError(
            f"no place for the embedded server's data in {folder} ({error.strerror}); "
            "make room, set BUB_HOME to another folder, or BUB_REDIS_URL to a server"
        ) from None
    return server


def _wait_for_other(home: Path) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while running_url(home) is None:
        if time.monotonic() > deadline:
            raise ConfigError(f"another process holds {home / _FOLDER} and serves nothing; end it, or set BUB_HOME")
        time.sleep(_PROBE_INTERVAL_S)
