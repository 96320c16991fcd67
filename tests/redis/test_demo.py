"""`bub-redis demo`: it shows what it promises, measured, and leaves nothing."""

import asyncio
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bub_redis.cli.demo import redis_cli
from bub_redis.settings import Settings
from bub_redis.testing import EmbeddedServer, wait_until
from bub_redis.turns import TurnClient
from tests.redis.commands import bub_redis, environment, start
from tests.redis.readme import settled, with_output

MARK = "BUB_TEST_MARK"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder of its own for the demo, whose path is short enough for a socket in it."""
    path = Path(tempfile.mkdtemp(prefix="t"))
    yield path
    shutil.rmtree(path)


def marked_processes(folder: Path) -> list[str]:
    """Processes that the demo in `folder` started, whatever became of it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={folder}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text(encoding="utf-8").replace("\0", " "))
        except OSError:
            continue
    return found


def demo_environment(folder: Path) -> dict[str, str]:
    return environment(None, TMPDIR=str(folder), **{MARK: str(folder)})


def demo_under_way(folder: Path) -> subprocess.Popen[str]:
    """A demo whose workers have begun with the first turns."""
    demo = start("demo", env=demo_environment(folder))
    assert demo.stdout is not None
    for line in demo.stdout:
        if "started" in line:
            break
    return demo


def test_every_check_holds_the_model_is_named_and_nothing_is_left(folder: Path) -> None:
    finished = bub_redis("demo", env=demo_environment(folder), timeout_s=45)
    assert (finished.returncode, finished.stderr) == (0, "")
    table = finished.stdout.partition("What the tapes say")[2]
    assert re.search(r"turns +│ 7, each on its tape once +│ ✓", table)
    assert re.search(r"sessions +│ 3, a tape each +│ ✓", table)
    assert re.search(r"order kept +│ in 3 of 3 sessions +│ ✓", table)
    assert re.search(r"recovered turn +│ yes, running again after \d\.\d s, as attempt 2 +│ ✓", table)
    assert re.search(r"time to first text +│ \d+ ms after the enqueue +│ ✓", table)
    assert settled(table.partition("\n")[2]) == settled(with_output("make demo")[1])
    assert "model    scripted" in finished.stdout
    assert "BUB_MODEL=provider:model and REPUBLIC_<PROVIDER>_API_KEY" in finished.stdout
    assert list(folder.iterdir()) == []
    assert marked_processes(folder) == []


@pytest.mark.slow
async def test_on_a_server_of_the_users_it_removes_its_own_keys_and_touches_no_others(
    folder: Path, tmp_path: Path
) -> None:
    """With the least rights, those of deploy/users.acl."""
    users = (Path(__file__).parents[2] / "deploy/users.acl").read_text(encoding="utf-8")
    acl = tmp_path / "users.acl"
    acl.write_text(f"{users}user admin on >change-me ~* +@all\n", encoding="utf-8")
    with EmbeddedServer(args=["--aclfile", str(acl)]) as own:
        url = f"unix://{{}}:change-me@{own.socket_path}"
        async with TurnClient.from_url(url.format("admin")) as user:
            await user.server.commands.mset({"mine": 1, "bub:dispatches": 7, "arq:job:mine": 1})
            env = demo_environment(folder) | {"BUB_REDIS_URL": url.format("bub")}
            finished = await asyncio.to_thread(bub_redis, "demo", env=env, timeout_s=45)
            assert (finished.returncode, finished.stderr) == (0, "")
            assert re.search(r"keys: bub-demo-[0-9a-f]{8}:\*", finished.stdout)
            assert sorted(await user.server.commands.keys("*")) == [b"arq:job:mine", b"bub:dispatches", b"mine"]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ended_early_it_leaves_nothing_either(folder: Path, signum: signal.Signals, code: int) -> None:
    demo = demo_under_way(folder)
    demo.send_signal(signum)
    _, said = demo.communicate(timeout=15)
    assert (demo.returncode, said) == (code, "")
    assert list(folder.iterdir()) == []
    assert marked_processes(folder) == []


async def test_killed_it_takes_its_processes_along(folder: Path) -> None:
    demo = demo_under_way(folder)
    demo.kill()
    demo.communicate()
    await wait_until(lambda: not marked_processes(folder), "server and workers are gone")


def redis_cli_shows(server: EmbeddedServer, *command: str) -> list[str]:
    arguments = ["redis-cli", "--no-raw", "-s", str(server.socket_path), *command]
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="there is no redis-cli to compare with")
async def test_the_raw_tape_is_what_redis_cli_shows(
    server: EmbeddedServer, settings: Settings, client: TurnClient
) -> None:
    key = f"{settings.namespace}:raw"
    for number in range(1, 12):
        await client.server.commands.xadd(key, {"payload": '{"a": "\\"ü\n\x00"}', "empty": ""}, id=f"5-{number}")
    shown = redis_cli_shows(server, "XRANGE", key, "-", "+")
    page = await client.server.commands.xrange(key)
    assert list(redis_cli.reply_lines(redis_cli.stream_reply(page))) == shown
