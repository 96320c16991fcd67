"""`bub-redis chat`: a conversation at the terminal or through a pipe, on a server that is there or on its own."""

import json
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bub_redis.settings import Settings
from bub_redis.testing import wait_until
from tests.redis.commands import bub_redis, complaint, environment, start
from tests.redis.terminals import CTRL_C, CTRL_D, ENTER, on_terminal
from tests.redis.workers import worker_processes

AGENT = "tests.redis.agents:agent"


def something_listens() -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("localhost", 6379)) == 0


own_server = pytest.mark.skipif(something_listens(), reason="a Redis runs here, which chat would use")


@pytest.fixture
def home() -> Iterator[Path]:
    """A home whose path is short, as the temporary folder that the server's socket is in."""
    path = Path(tempfile.mkdtemp(prefix="t"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def env(home: Path) -> dict[str, str]:
    return environment(BUB_HOME=str(home), TMPDIR=str(home), BUB_TEST_MARK=str(home))


def processes(home: Path) -> list[str]:
    """What chat started and has not ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"BUB_TEST_MARK={home}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text(encoding="utf-8").replace("\0", " "))
        except OSError:
            continue
    return found


@own_server
def test_through_a_pipe_every_line_is_a_turn_and_nothing_but_data_is_left(home: Path, env: dict[str, str]) -> None:
    finished = bub_redis("chat", env=env, stdin="你好 world\n\nwhat time is it?\n")
    assert finished.returncode == 0
    assert finished.stderr.splitlines() == [
        f"started a server, data in {home}/server, and a worker: both end with this chat; "
        "no model is set (BUB_MODEL), so a script answers"
    ]
    answer, call, result, time = finished.stdout.splitlines()
    assert answer.startswith("You said: 你好 world (I am a script")
    assert call == "→ clock()"
    assert time == f"It is {result.removeprefix('← ')}."
    assert processes(home) == []
    assert [path.name for path in home.iterdir()] == ["server"]
    assert not (home / "server" / "socket").exists()


@own_server
def test_the_conversation_goes_on_the_next_time(env: dict[str, str]) -> None:
    assert bub_redis("chat", "customer-42", env=env, stdin="one\n").returncode == 0
    with start("chat", "customer-42", env=env) as chat:
        assert chat.stdin is not None and chat.stdout is not None
        chat.stdin.write("two\n")
        chat.stdin.flush()
        chat.stdout.readline()
        shown = bub_redis("tape", "show", "customer-42", "--json", env=env)
        chat.communicate()
    prompts = [entry["payload"] for entry in map(json.loads, shown.stdout.splitlines()) if entry["kind"] == "message"]
    assert [message["content"] for message in prompts if message["role"] == "user"] == ["one", "two"]


@own_server
def test_other_commands_and_a_second_chat_find_the_server(env: dict[str, str]) -> None:
    with on_terminal("chat", env=env) as first:
        first.wait_for("> ")
        sent = bub_redis("turn", "enqueue", "s", "hello", "--follow", env=env)
        assert sent.stdout.splitlines()[1].startswith("You said: hello")
        second = bub_redis("chat", "s", env=env, stdin="again\n")
        assert (second.returncode, second.stderr) == (
            0,
            f"uses the server that another chat started, data in {env['BUB_HOME']}/server: it ends with that chat\n",
        )
        assert bub_redis("tape", "ls", env=env).stdout.splitlines()[1].startswith("s ")
        first.type(CTRL_D)
        assert first.wait() == 0
    gone = bub_redis("tape", "ls", env=env)
    assert gone.returncode == 5
    assert complaint(gone).startswith("no answer from redis://localhost:6379/0")


@own_server
@pytest.mark.parametrize("during", ["the prompt", "a turn"])
def test_a_second_chat_ends_with_the_one_whose_server_it_uses(home: Path, env: dict[str, str], during: str) -> None:
    with on_terminal("chat", "--agent", AGENT, env=env) as first:
        first.wait_for("> ")
        with on_terminal("chat", "s", env=env) as second:
            second.wait_for("uses the server that another chat started")
            second.wait_for("> ")
            if during == "a turn":
                second.type("wait 20" + ENTER)
                second.wait_for("→ wait(")
            first.type(CTRL_D)
            assert first.wait() == 0
            if during == "the prompt":
                second.type("hello" + ENTER)
            second.wait_for("the chat that started the server has left and ended it; start chat again to go on")
            assert second.wait() == 5
            assert "Traceback" not in second.shown
    assert processes(home) == []


@own_server
def test_ctrl_c_cancels_the_turn_and_a_second_one_leaves(home: Path, env: dict[str, str]) -> None:
    with on_terminal("chat", env=env) as chat:
        chat.wait_for("> ")
        chat.type("a b c d e f g h i j k l m n o p q r s t u v w x y z" + ENTER)
        chat.wait_for("You said: a b")
        chat.type(CTRL_C)
        chat.wait_for("cancelled (entries 3 to ")
        chat.wait_for("> ")
        chat.type("what time is it" + ENTER)
        chat.wait_for("It is ")
        chat.wait_for("> ")
        chat.type("abc" + CTRL_C)
        chat.wait_for("(Ctrl-C again, or Ctrl-D, leaves)")
        chat.wait_for("> ")
        chat.type(CTRL_C)
        assert chat.wait() == 130
        assert "Traceback" not in chat.shown
    assert processes(home) == []


@own_server
@pytest.mark.slow
async def test_a_second_ctrl_c_leaves_in_the_middle_of_a_turn(home: Path, env: dict[str, str]) -> None:
    trace = home / "trace"
    with on_terminal("chat", "--agent", AGENT, env=env | {"TEST_TRACE": str(trace)}) as chat:
        chat.wait_for("> ")
        chat.type("block 3" + ENTER)
        await wait_until(lambda: trace.exists() and "block" in trace.read_text(), "the tool that cannot be stopped")
        chat.type(CTRL_C)
        # Two at once are one: signals do not queue.
        chat.wait_for("^C")
        chat.look()
        chat.type(CTRL_C)
        assert chat.wait() == 130
        assert "Traceback" not in chat.shown
    assert processes(home) == []


@own_server
@pytest.mark.parametrize("during", ["the prompt", "a turn"])
def test_sigterm_ends_all_of_it(home: Path, env: dict[str, str], during: str) -> None:
    with on_terminal("chat", "--agent", AGENT, env=env) as chat:
        chat.wait_for("> ")
        if during == "a turn":
            chat.type("wait 20" + ENTER)
            chat.wait_for("→ wait(")
        chat.process.send_signal(signal.SIGTERM)
        assert chat.wait() == 143
        assert "Traceback" not in chat.shown
    assert processes(home) == []
    assert [path.name for path in home.iterdir()] == ["server"]


@own_server
@pytest.mark.slow
async def test_killed_it_takes_its_processes_along_and_the_next_chat_starts_anew(
    home: Path, env: dict[str, str]
) -> None:
    with on_terminal("chat", env=env) as chat:
        chat.wait_for("> ")
        chat.process.kill()
        chat.process.wait()
    await wait_until(lambda: not processes(home), "server and worker are gone")
    assert (home / "server" / "socket").exists()
    assert "You said: hi" in bub_redis("chat", env=env, stdin="hi\n").stdout


@own_server
@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_its_turn_completes(env: dict[str, str]) -> None:
    env = env | {"BUB_LEASE_S": "0.9", "BUB_BEAT_S": "0.2", "BUB_RECONCILE_S": "0.05", "BUB_MAX_CRASHES": "1"}
    finished = bub_redis("chat", "--agent", AGENT, env=env, stdin="die\nhello\n", timeout_s=40)
    assert finished.returncode == 1
    assert "ended with code -9; another one takes the turn over" in finished.stderr
    assert "failed: " in finished.stdout
    assert finished.stdout.endswith("echo: hello\n")


@own_server
def test_the_agent_may_be_in_a_worker_py_of_the_users(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("from tests.redis.agents import agent as mine\n", encoding="utf-8")
    env = env | {"PYTHONPATH": str(Path(__file__).parents[2])}
    finished = bub_redis("chat", "--agent", "worker:mine", env=env, stdin="hello\n", cwd=tmp_path)
    assert (finished.returncode, finished.stdout) == (0, "echo: hello\n")


@own_server
def test_an_agent_that_is_not_there_is_wrong_usage(home: Path, env: dict[str, str]) -> None:
    refused = bub_redis("chat", "--agent", "nowhere:agent", env=env, stdin="hello\n")
    assert "no module 'nowhere'" in complaint(refused)
    assert refused.returncode == 2
    assert processes(home) == []


@own_server
def test_an_agent_without_a_model_is_found_out_at_once(home: Path, env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from bub_redis import Agent\nagent = Agent()\n", encoding="utf-8")
    env = env | {"PYTHONPATH": str(Path(__file__).parents[2])}
    refused = bub_redis("chat", "--agent", "shop:agent", env=env, stdin="hello\n", cwd=tmp_path)
    assert refused.returncode == 2
    assert complaint(refused) == "shop:agent has no model; name one by --model PROVIDER:MODEL, or in BUB_MODEL"
    assert processes(home) == []


@own_server
def test_no_room_for_the_servers_data(env: dict[str, str]) -> None:
    refused = bub_redis("chat", env=env | {"BUB_HOME": "/proc/nowhere"}, stdin="")
    assert refused.returncode == 2
    said = complaint(refused)
    assert said.startswith("no place for the embedded server's data in /proc/nowhere/server (")
    assert "set BUB_HOME to another folder, or BUB_REDIS_URL to a server" in said


def test_a_server_that_is_named_is_never_replaced(env: dict[str, str]) -> None:
    refused = bub_redis("chat", env=env | {"BUB_REDIS_URL": "redis://127.0.0.1:1/0"}, stdin="hi\n")
    assert refused.returncode == 5
    assert complaint(refused).startswith("no answer from redis://127.0.0.1:1/0")


def test_on_a_server_that_is_there_it_uses_the_workers_that_are(settings: Settings) -> None:
    env = environment(settings)
    with worker_processes(settings, AGENT):
        finished = bub_redis("chat", "s", env=env, stdin="order 7\nhello\n")
    assert finished.returncode == 0
    assert finished.stdout.splitlines() == [
        '→ lookup(order="7")',
        '← {"order": "7", "status": "shipped"}',
        'done: {"order": "7", "status": "shipped"}',
        "echo: hello",
    ]


def test_without_a_worker_it_says_that_turns_wait(settings: Settings) -> None:
    finished = bub_redis("chat", env=environment(settings), stdin="")
    assert finished.returncode == 0
    assert "no worker runs yet, so turns wait: start one with `bub-redis worker" in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "nobody:x"), "there is no provider 'nobody'"),
        (("--agent", "a:b"), "--agent is for the worker that chat starts"),
        (("a\tb",), "holds a control character"),
    ],
)
def test_what_can_never_work_is_wrong_usage(settings: Settings, arguments: tuple[str, ...], said: str) -> None:
    refused = bub_redis("chat", *arguments, env=environment(settings), stdin="hi\n")
    assert refused.returncode == 2
    assert said in complaint(refused)


def test_a_reader_that_leaves_ends_it_quietly(settings: Settings) -> None:
    with worker_processes(settings, AGENT):
        chat = start("chat", env=environment(settings))
        assert chat.stdin and chat.stdout and chat.stderr
        chat.stdout.close()
        chat.stdin.write("hello\nhello\n")
        chat.stdin.close()
        assert chat.wait(20) == 141
        assert "Traceback" not in chat.stderr.read()
        chat.stderr.close()
