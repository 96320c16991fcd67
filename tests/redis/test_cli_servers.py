"""Servers that cannot be used: every command says in one line what is wrong and what to do, and changes nothing."""

import socketserver
import threading
from collections.abc import Iterator

import pytest
import redis.exceptions as redis_errors

from bub_redis.storage.outages import translated
from bub_redis.testing import EmbeddedServer
from tests.redis.commands import bub_redis, complaint, environment, invoke

COMMANDS = {
    "turn enqueue": ("turn", "enqueue", "s", "hi"),
    "tape show": ("tape", "show", "s"),
    "worker": ("worker", "tests.redis.agents:agent"),
    "demo": ("demo",),
}
every_command = pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)


class OldServer(socketserver.StreamRequestHandler):
    """A Redis 6.2 as far as INFO goes."""

    def handle(self) -> None:
        while header := self.rfile.readline():
            parts = [self._part() for _ in range(int(header[1:]))]
            self.wfile.write(b"$20\r\nredis_version:6.2.14\r\n" if parts[0] == b"INFO" else b"+OK\r\n")

    def _part(self) -> bytes:
        length = int(self.rfile.readline()[1:])
        return self.rfile.read(length + 2)[:-2]


class WebServer(socketserver.StreamRequestHandler):
    """Answers in HTTP, whatever it is asked."""

    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.fixture
def old_server() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), OldServer) as serving:
        serving.daemon_threads = True
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"redis://127.0.0.1:{serving.server_address[1]}/0"
        serving.shutdown()


@pytest.fixture(scope="module")
def locked_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(appendonly=False, args=["--requirepass", "the-right-one"]) as started:
        yield started


def refusal(arguments: tuple[str, ...], url: str) -> tuple[int, str]:
    # A worker sets up the logging of its process.
    run = bub_redis if arguments[0] == "worker" else invoke
    refused = run(*arguments, env=environment(BUB_REDIS_URL=url))
    return refused.returncode, complaint(refused)


@every_command
def test_a_server_that_is_not_there(arguments: tuple[str, ...]) -> None:
    code, said = refusal(arguments, "redis://user:secret@127.0.0.1:1/0")
    assert code == 5
    assert said == "no answer from redis://127.0.0.1:1/0 (connection refused); is the server running and the URL right?"


@every_command
def test_a_server_that_is_too_old(arguments: tuple[str, ...], old_server: str) -> None:
    code, said = refusal(arguments, old_server)
    assert code == 5
    assert said.endswith("is Redis 6.2.14; Redis 7.0 or Valkey 7.2 at least is needed")


@every_command
def test_a_wrong_password(arguments: tuple[str, ...], locked_server: EmbeddedServer) -> None:
    code, said = refusal(arguments, f"unix://:wrong-one@{locked_server.socket_path}")
    assert code == 2
    assert said.endswith("refuses the user or password; check the user and password in the URL")
    assert "wrong-one" not in said


@every_command
def test_no_password_where_one_is_wanted(arguments: tuple[str, ...], locked_server: EmbeddedServer) -> None:
    code, said = refusal(arguments, locked_server.url)
    assert code == 2
    assert "wants a password; put it into the URL" in said


def test_a_database_that_the_server_does_not_have(locked_server: EmbeddedServer) -> None:
    code, said = refusal(COMMANDS["tape show"], f"unix://:the-right-one@{locked_server.socket_path}?db=99")
    assert code == 2
    assert said.endswith("has no database of that number; end the URL in another one, such as /0")


def test_what_answers_is_no_redis() -> None:
    """A web server at the port, say."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), WebServer) as serving:
        serving.daemon_threads = True
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        address = f"redis://127.0.0.1:{serving.server_address[1]}/0"
        code, said = refusal(COMMANDS["tape show"], address)
        serving.shutdown()
    assert code == 5
    assert said == f"what answers at {address} is no Redis; check host and port of the URL"


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (redis_errors.BusyLoadingError(), "(it is loading its data); try again in a while"),
        (redis_errors.ReadOnlyError(), "(it is a replica, which takes no writes); name the primary in the URL"),
        (redis_errors.OutOfMemoryError(), "(its memory is full); raise maxmemory, then delete tapes"),
        (redis_errors.ResponseError("MISCONF no"), "(it cannot save to disk (MISCONF)); see its log"),
        (redis_errors.ResponseError("NOREPLICAS no"), "(too few replicas are in step (NOREPLICAS)); see "),
    ],
)
def test_what_passes_is_said_in_words_with_its_remedy(refused: Exception, said: str) -> None:
    assert str(translated(refused, "redis://db:1/0")).startswith(f"redis://db:1/0 cannot serve now {said}")


def test_a_right_that_lacks_names_who_knows_it() -> None:
    said = str(translated(redis_errors.NoPermissionError(), "redis://db:1/0"))
    assert "`bub-redis doctor` names the rights that it lacks" in said


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://no-such-host.invalid:6379/0", "its host name cannot be resolved"),
        ("unix:///nowhere/v.sock", "there is no such socket"),
    ],
)
def test_why_there_is_no_answer(url: str, reason: str) -> None:
    code, said = refusal(COMMANDS["tape show"], url)
    assert code == 5
    assert said == f"no answer from {url} ({reason}); is the server running and the URL right?"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:6379", "'localhost:6379' is no Redis URL; write redis://[:password@]host:port/0"),
        ("me:secret@localhost:6379/0", "'***' is no Redis URL; "),
        ("redis://:sec/ret@localhost/0", "'redis://***' is no Redis URL; "),
        ("redis://:secret@localhost/x", "'redis://localhost:6379/x' ends in no database; write its number, such as /0"),
        ("redis://:secret@localhost/-1", "'redis://localhost:6379/-1' ends in no database; "),
        (
            "redis://localhost/0?password=secret&foo=bar",
            "the URL of redis://localhost:6379/0 has a parameter 'foo', which is not taken; remove it, or write",
        ),
        ("redis://localhost/0?db=x", "'redis://localhost:6379/0' is no Redis URL; "),
        ("rediss://localhost/0?ssl_cert_reqs=perhaps", "'rediss://localhost:6379/0' is no Redis URL; "),
    ],
)
def test_a_url_that_can_never_work(url: str, said: str) -> None:
    code, complained = refusal(COMMANDS["tape show"], url)
    assert code == 2
    assert complained.startswith(f"BUB_REDIS_URL: {said}")
    assert "sec" not in complained


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("BUB_REDIS_URL", "http://localhost", "is no Redis URL; write redis://"),
        ("BUB_TAPE_URL", "http://localhost", "BUB_TAPE_URL: 'http://localhost:6379' is no Redis URL; write redis://"),
        ("BUB_NAMESPACE", "a:b", "BUB_NAMESPACE is 'a:b'; write 1 to 32 of A-Z a-z 0-9 _ -"),
        ("BUB_LEASE_S", "1", "BUB_LEASE_S (1) must be at least 3 times BUB_BEAT_S (3)"),
    ],
)
def test_a_setting_that_is_wrong(name: str, value: str, cause: str) -> None:
    refused = invoke("tape", "show", "s", env=environment(None, **{name: value}))
    assert refused.returncode == 2
    assert cause in complaint(refused)
