"""Every python block of the pages is run, in order, and prints what the block below it says."""

import ast
import code
import contextlib
import inspect
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["agent.md", "testing.md"]
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:```text\n(?P<output>.*?)```)?", re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
async def test_every_block_runs_and_prints_what_the_page_says(page: str) -> None:
    namespace: dict[str, Any] = {"__name__": page}
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```python")
    for block in blocks:
        line = text.count("\n", 0, block.start("code"))
        printed = io.StringIO()
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
