"""`bub-redis worker`: it runs what is named, says what is wrong with what is not there, and ends when told to."""

import asyncio
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bub_redis.errors import ConfigError
from bub_redis.settings import Settings, load_settings
from bub_redis.testing import EmbeddedServer
from bub_redis.turns import TurnClient
from tests.redis.commands import bub_redis, complaint, environment, invoke, start
from worker.load import load_agent

SOON = timedelta(seconds=20)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_it_runs_turns_until_it_is_told_to_stop(
    client: TurnClient, settings: Settings, signum: signal.Signals
) -> None:
    env = environment(settings, BUB_AGENT="tests.redis.agents:agent")
    worker = start("worker", env=env)
    try:
        result = await client.result(await client.enqueue("s", "hello"), timeout=SOON)
        assert result.text == "echo: hello"
        worker.send_signal(signum)
        _, log = await asyncio.to_thread(worker.communicate, None, 10)
        assert worker.returncode == 0
        assert "worker.stopped" in log
    finally:
        worker.kill()
        worker.communicate()


def test_what_is_named_wins_over_the_environment(settings: Settings) -> None:
    env = environment(settings, BUB_AGENT="tests.redis.agents:agent")
    refused = bub_redis("worker", "tests.redis.agents:nobody", env=env)
    assert "'nobody'" in complaint(refused)


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ("no_such_module:agent", "no module 'no_such_module'"),
        ("tests.redis.agents:nobody", "tests.redis.agents has no 'nobody'; agents found there: agent"),
        ("tests.redis.agents:wait", "tests.redis.agents:wait is a Tool; an Agent, or a function returning one"),
        ("tests.redis.agents:answer", "tests.redis.agents:answer cannot be called without arguments"),
        ("tests.redis.agents", "'tests.redis.agents' is no module:attribute"),
    ],
)
def test_nothing_to_run_at_that_name(settings: Settings, spec: str, cause: str) -> None:
    refused = bub_redis("worker", spec, env=environment(settings))
    assert refused.returncode == 2
    assert cause in complaint(refused)


def test_nothing_named_at_all(settings: Settings) -> None:
    refused = bub_redis("worker", env=environment(settings))
    assert refused.returncode == 2
    assert "name an agent as module:attribute, or a model in BUB_MODEL" in complaint(refused)


async def runs(settings: Settings, client: TurnClient, folder: Path, spec: str) -> None:
    """A worker in that folder runs turns of the agent that `spec` names there."""
    env = environment(settings, PYTHONPATH=str(Path(__file__).parents[2]))
    worker = start("worker", spec, env=env, cwd=folder)
    try:
        assert (await client.result(await client.enqueue("s", "hello"), timeout=SOON)).text == "echo: hello"
    finally:
        worker.kill()
        worker.communicate()


async def test_a_worker_py_of_the_users_lives_beside_ours(
    client: TurnClient, settings: Settings, tmp_path: Path
) -> None:
    source = "import worker.settings\nfrom tests.redis.agents import agent as mine\n"
    (tmp_path / "worker.py").write_text(source, encoding="utf-8")
    await runs(settings, client, tmp_path, "worker:mine")


async def test_a_package_of_the_users_called_worker_too(client: TurnClient, settings: Settings, tmp_path: Path) -> None:
    package = tmp_path / "worker"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tools.py").write_text("from tests.redis.agents import agent\n", encoding="utf-8")
    (package / "shop.py").write_text("from .tools import agent\n\n\nclass Shop:\n    agent = agent\n", encoding="utf-8")
    await runs(settings, client, tmp_path, "worker.shop:Shop.agent")


@pytest.mark.parametrize(
    ("source", "spec", "said"),
    [
        ("x = 1", "worker:agent", "worker has no 'agent'; agents found there: none"),
        ("x = 1", "worker.shop:agent", "no module 'worker.shop' in "),
        ("def (", "worker:agent", "worker cannot be imported: SyntaxError in {folder}/worker.py line 1"),
        ("\n1 / 0", "worker:agent", "ZeroDivisionError in {folder}/worker.py line 2: division by zero"),
        ("import no_such_thing", "worker:agent", "worker.py line 1: No module named 'no_such_thing'"),
        ("x = 1", "worker.py:agent", "'worker.py' is a file; name the module: `worker:agent`"),
        ("x = 1", "shop/worker.py:agent", "'shop/worker.py' is a file; name the module: `shop.worker:agent`"),
        ("x = 1", "{folder}/shop.py:agent", "shop.py' is a file; name the module: `shop:agent`"),
        ("x = 1", "agent.py", "'agent.py' is a file; name the module: `agent:agent`"),
        ("x = 1", "../my app/shop.py:agent", ": `cd '../my app' && bub-redis worker shop:agent`"),
        ("x = 1", "/srv/shop:agent", ": `cd /srv && bub-redis worker shop:agent`"),
        (
            "from bub_redis import Agent\nagent = Agent(model='nobody:x')",
            "worker:agent",
            "there is no provider 'nobody'",
        ),
        ("from bub_redis import Agent\nagent = Agent(fallbacks=['x'])", "worker:agent", "'x' is no model"),
        ("async def agent():\n    return 5", "worker:agent", "worker:agent is an int; an Agent, or a function"),
        (
            "def agent():\n    1 / 0",
            "worker:agent",
            "worker:agent makes no agent: ZeroDivisionError in {folder}/worker.py",
        ),
        (
            "async def agent():\n    1 / 0",
            "worker:agent",
            "makes no agent: ZeroDivisionError in {folder}/worker.py line 2",
        ),
        (
            "raise SystemExit(3)",
            "worker:agent",
            "worker cannot be imported: SystemExit in {folder}/worker.py line 1: 3",
        ),
        ("def agent():\n    exit(3)", "worker:agent", "worker:agent makes no agent: SystemExit in "),
        # The coroutine is never awaited, of which Python would warn.
        ("import asyncio\nasync def main(): ...\nasyncio.run(main())", "worker:main", "asyncio.run() cannot be called"),
    ],
)
async def test_what_is_wrong_with_the_users_module_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, spec: str, said: str
) -> None:
    (tmp_path / "worker.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "_users_worker", raising=False)
    with pytest.raises(ConfigError) as caught:
        await load_agent(load_settings(agent=spec.format(folder=tmp_path)))
    monkeypatch.delitem(sys.modules, "_users_worker", raising=False)
    assert said.format(folder=tmp_path) in str(caught.value)


@pytest.mark.parametrize("spec", ["queue:agent", "queue.shop:agent"])
async def test_a_file_with_the_name_of_a_module_of_pythons_is_to_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    (tmp_path / "queue.py").write_text("from bub_redis import Agent\nagent = Agent()\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ConfigError) as caught:
        await load_agent(load_settings(agent=spec))
    said = f"; {queue.__file__} was imported in place of {tmp_path}/queue.py: rename yours"
    assert str(caught.value).endswith(said)


def test_an_agent_without_a_model_is_told_of_at_the_start(settings: Settings, tmp_path: Path) -> None:
    """It is no error: turns may name models of their own."""
    (tmp_path / "shop.py").write_text("from bub_redis import Agent\nagent = Agent(name='shop')\n", encoding="utf-8")
    env = environment(settings, PYTHONPATH=str(Path(__file__).parents[2]))
    keyless = {"BUB_MODEL": "openai:gpt-5"}
    for variables, first, remedy in (
        ({}, "agent.has_no_model", "set BUB_MODEL"),
        (keyless, "model.has_no_key", "set REPUBLIC_OPENAI_API_KEY"),
        (keyless | {"REPUBLIC_OPENAI_API_KEY": "k"}, "worker.ready", ""),
        (keyless | {"REPUBLIC_OPENAI_API_BASE": "http://127.0.0.1:1/v1"}, "worker.ready", ""),
    ):
        worker = start("worker", "shop:agent", env=env | variables, cwd=tmp_path)
        assert worker.stderr is not None
        try:
            lines = iter(worker.stderr.readline, "")
            said = next(json.loads(line) for line in lines if "server." not in line)
        finally:
            worker.kill()
            worker.communicate()
        assert (said["event"], said["agent"]) == (first, "shop:agent")
        assert remedy in said.get("remedy", "")


def test_a_mistyped_variable_is_told_of_at_the_start(settings: Settings) -> None:
    worker = start("worker", "tests.redis.agents:agent", env=environment(settings, BUB_MAX_JOB="5"))
    assert worker.stderr is not None
    try:
        said = json.loads(worker.stderr.readline())
    finally:
        worker.kill()
        worker.communicate()
    assert (said["event"], said["variable"]) == ("setting.unknown", "BUB_MAX_JOB")
    assert said["remedy"] == "did you mean BUB_MAX_JOBS?"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_the_imports_ends_it_quietly(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    """As the first process of a container it would not even be told of SIGTERM without a handler."""
    (tmp_path / "typer.py").write_text(
        f"import os, signal\nos.kill(os.getpid(), {int(signum)})\nsignal.pause()\n", encoding="utf-8"
    )
    env = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]))
    ended = bub_redis("worker", "shop:agent", env=env)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")


async def test_a_worker_may_stop_that_may_not_say_goodbye() -> None:
    user = ["--user", "poor", "on", ">pw", "~other:*", "&*", "+@all"]
    with EmbeddedServer(args=user) as strict:
        url = f"unix://poor:pw@{strict.socket_path}"
        worker = start("worker", "tests.redis.agents:agent", env=environment(BUB_REDIS_URL=url))
        try:
            assert worker.stderr is not None
            warning = json.loads(await asyncio.to_thread(worker.stderr.readline))
            assert warning["event"] == "server.rights_missing"
            while "worker.ready" not in await asyncio.to_thread(worker.stderr.readline):
                pass
            worker.send_signal(signal.SIGTERM)
            await asyncio.to_thread(worker.communicate, None, 10)
            assert worker.returncode == 0
        finally:
            worker.kill()
            worker.communicate()


def test_a_server_that_may_drop_tapes_is_refused_unless_forced() -> None:
    """Case 139: eviction policies that can drop tapes."""
    with EmbeddedServer(args=["--maxmemory-policy", "allkeys-lru"]) as evicting:
        env = environment(None, BUB_REDIS_URL=evicting.url)
        refused = bub_redis("worker", "tests.redis.agents:agent", env=env)
        assert refused.returncode == 5
        assert complaint(refused).endswith(
            "may drop tapes when its memory is full (maxmemory-policy allkeys-lru); "
            "set maxmemory-policy noeviction, or take the risk with BUB_FORCE=1"
        )
        assert invoke("turn", "enqueue", "s", "hi", env=env).returncode == 5
        assert invoke("turn", "enqueue", "s", "hi", env=env | {"BUB_FORCE": "1"}).returncode == 0
        forced = start("worker", "tests.redis.agents:agent", "--force", env=env)
        assert forced.stderr is not None
        assert "server.may_drop_tapes" in forced.stderr.readline()
        assert "worker.ready" in forced.stderr.readline()
        forced.terminate()
        forced.communicate()


@pytest.fixture
def refusing_provider() -> Iterator[str]:
    """A provider that takes no key."""

    class Refusal(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = b'{"error": {"message": "Incorrect API key provided: k-123456789"}}'
            self.send_response(401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}/v1"
        serving.shutdown()


def test_a_refused_key_is_a_failed_turn_that_names_the_variable(settings: Settings, refusing_provider: str) -> None:
    env = environment(
        settings,
        BUB_MODEL="openai:gpt-5",
        REPUBLIC_OPENAI_API_BASE=refusing_provider,
        REPUBLIC_OPENAI_API_KEY="k-123456789",
    )
    worker = start("worker", env=env)
    try:
        failed = invoke("turn", "enqueue", "s", "hi", "--follow", env=env)
    finally:
        worker.kill()
        worker.communicate()
    assert failed.returncode == 1
    said = failed.stdout.splitlines()[-1]
    assert "HTTP 401: Incorrect API key provided: ***; set REPUBLIC_OPENAI_API_KEY to a key that may use this" in said


async def test_the_agent_may_be_in_the_current_folder_and_made_by_a_function(
    client: TurnClient, settings: Settings, tmp_path: Path
) -> None:
    source = "from tests.redis.agents import agent\n\nasync def make():\n    return agent\n"
    (tmp_path / "shop.py").write_text(source, encoding="utf-8")
    await runs(settings, client, tmp_path, "shop:make")
