"""Every python block of the pages is run, in order, and prints what the block below it says."""

import ast
import code
import contextlib
import inspect
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ["agent.md", "testing.md"]
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:```text\n(?P<output>.*?)```)?", re.DOTALL)
SAVED = re.compile(r"# (\w+\.py)\n")


@pytest.mark.parametrize("page", PAGES)
async def test_every_block_runs_and_prints_what_the_page_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of its own, in which a block that begins with `# name.py` is saved as well."""
    monkeypatch.chdir(tmp_path)
    # Where the commands are.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    namespace: dict[str, Any] = {"__name__": page}
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```python")
    for block in blocks:
        line = text.count("\n", 0, block.start("code"))
        printed = io.StringIO()
        if saved := SAVED.match(block["code"]):
            (tmp_path / saved[1]).write_text(block["code"], encoding="utf-8")
        # The lines of the page, so that a traceback names them.
        compiled = compile("\n" * line + block["code"], page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(printed), capture_logs():
            outcome = eval(compiled, namespace)  # noqa: S307 - our own page
            if inspect.isawaitable(outcome):
                await outcome
        assert printed.getvalue() == (block["output"] or ""), f"{page}, line {line}"


class Pasted(code.InteractiveConsole):
    """What `python -m asyncio` takes a line at a time; nothing is run."""

    def __init__(self) -> None:
        super().__init__()
        self.compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

    def runcode(self, code: Any) -> None:
        """Leave it."""

    def showsyntaxerror(self, filename: str | None = None, **given: Any) -> None:
        """Fail."""
        raise AssertionError(str(sys.exc_info()[1]))


@pytest.mark.parametrize("page", PAGES)
def test_every_block_can_be_pasted_into_an_interpreter(page: str) -> None:
    """A blank line must end what is indented."""
    console = Pasted()
    for block in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8")):
        for line in block["code"].splitlines():
            console.push(line)
        assert not console.push(""), block["code"]


def test_every_event_of_the_log_that_the_page_names_is_told() -> None:
    """By its name; the fields are left to the reader's eye."""
    (table,) = re.findall(r"^\| event \| when .*\n(?:\|.*\n)+", (DOCS / "operate.md").read_text("utf-8"), re.MULTILINE)
    names = {name for row in table.splitlines()[2:] for name in re.findall(r"`([a-z_.]+)`", row.split("|")[1])}
    sources = "".join(
        path.read_text("utf-8") for room in ("bub_redis", "worker") for path in (ROOT / room).rglob("*.py")
    )
    assert len(names) > 20
    assert [name for name in sorted(names) if f'"{name}"' not in sources] == []
