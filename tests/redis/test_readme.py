"""The README cannot lie: every block is run, in order, and shows what it says that it shows."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bub_redis.testing import EmbeddedServer
from tests.pure.openai_server import calling, openai_server, streamed
from tests.redis.commands import environment
from tests.redis.readme import ROOT, blocks, settled, with_output
from tests.redis.test_cli_chat import own_server

README_URL = "redis://localhost:6379/0"


class Reader:
    """Somebody who types the README's blocks into a shell, in a folder of their own."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.env = env
        self._groups: list[int] = []

    async def types(self, block: str) -> str:
        """What a shell block prints."""
        return await self._runs(["bash", "-euc", block.replace(". .venv/bin/activate\n", "")])

    async def runs(self, block: str, server: str) -> str:
        """What a Python block prints."""
        return await self._runs([sys.executable, "-c", block.replace(README_URL, server)])

    async def _runs(self, command: list[str]) -> str:
        return await asyncio.to_thread(self._run, command)

    def _run(self, command: list[str]) -> str:
        output = self.folder / "output"
        with output.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._groups.append(process.pid)
        assert process.wait(50) == 0, output.read_text(encoding="utf-8")
        return output.read_text(encoding="utf-8")

    def leaves(self) -> None:
        """End what blocks left in the background."""
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue


@contextmanager
def reading(**variables: str) -> Iterator[Reader]:
    folder = Path(tempfile.mkdtemp(prefix="t"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = environment(None, **{"HOME": str(folder), "TMPDIR": str(folder), "PATH": path, **variables})
    if "BUB_HOME" not in variables:
        del env["BUB_HOME"]
    reader = Reader(folder, env)
    try:
        yield reader
    finally:
        reader.leaves()
        shutil.rmtree(folder)


async def test_from_an_agent_to_a_verified_tape() -> None:
    """The sections `Your agent` and `With redis-cli`, each block in its turn; the model is a service on loopback."""
    model = [
        calling("order_status", '{"order_id": "A-1042"}'),
        streamed("Your order A-1042 ", "has been shipped."),
        streamed("You are ", "welcome."),
    ]
    async with openai_server(*model) as service:
        with (
            EmbeddedServer() as server,
            reading(
                BUB_REDIS_URL=server.url,
                BUB_MODEL="together:m",
                REPUBLIC_TOGETHER_API_BASE=service.url,
                REPUBLIC_TOGETHER_API_KEY="k",
            ) as reader,
        ):
            shop = next(block.text for block in blocks() if "def order_status" in block.text)
            (reader.folder / "shop.py").write_text(shop, encoding="utf-8")
            for words in ("worker shop:agent", "tape search"):
                typed, shown = with_output(words)
                assert settled(await reader.types(typed)) == settled(shown)
                if words == "worker shop:agent":
                    program, shown = with_output("TurnClient.from_url")
                    assert settled(await reader.runs(program, server.url)) == settled(shown)
            program, shown = with_output("RedisTapeStore.from_url")
            assert settled(await reader.runs(program, server.url)) == settled(shown)
            await auditor_reads(reader, server)


async def auditor_reads(reader: Reader, server: EmbeddedServer) -> None:
    if shutil.which("redis-cli") is None:
        return
    block = next(block.text for block in blocks() if "redis-cli XRANGE" in block.text)
    for line in block.splitlines():
        said = await reader.types(line.replace("redis-cli ", f"redis-cli -s {server.socket_path} "))
        assert said.strip(), line
        assert "ERR" not in said, line


@own_server
async def test_a_conversation_on_a_server_of_its_own() -> None:
    typed, shown = with_output("bub-redis chat")
    with reading() as reader:
        assert settled(await reader.types(typed)) == settled(shown)


def test_make_demo_is_the_demo() -> None:
    """Its output is compared in test_demo.py, where it runs."""
    (block,) = [block for block in blocks() if block.text == "make demo\n"]
    assert block.language == "sh"
    rule = re.search(r"^demo: .*\n\t@(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert rule and rule[1] == "$(VENV)/bin/bub-redis demo"


def test_no_block_is_left_out() -> None:
    covered = (
        "make demo",
        "bub-redis chat",
        "def order_status",
        "worker shop:agent",
        "TurnClient.from_url",
        "tape search",
        "RedisTapeStore.from_url",
        "redis-cli XRANGE",
    )
    for block in blocks():
        assert block.language == "text" or any(words in block.text for words in covered), block.text


@pytest.mark.parametrize(
    "page", ["README.md", "README.zh-CN.md", "CONTRIBUTING.md", *map(str, Path("docs").glob("*.md"))]
)
def test_every_link_leads_to_a_file(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (ROOT / page).parent.joinpath(target).exists(), target


def test_both_languages_are_in_step() -> None:
    """The same blocks, byte for byte; the same headings, links and rows, in the same places."""
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "README.zh-CN.md")]
    assert blocks("README.zh-CN.md") == blocks("README.md")
    shapes = [
        [
            re.findall(r"^#+ |^\|(?=.)|^- |^```\w*", page, re.MULTILINE),
            sorted(set(re.findall(r"\]\(([^)]+)\)", page)) - {"README.md", "README.zh-CN.md"}),
        ]
        for page in pages
    ]
    assert shapes[0] == shapes[1]
