"""What reaches the terminal: text that cannot move its cursor, and JSON one value a line."""

import sys
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from bub_redis.tape.entry import encode_json

_HARMLESS = "\n\t"
_REPLACED = {
    code: "\ufffd"
    # Marks of direction too: a line of a tape would be read in another order than it has.
    for span in (
        *(range(0x20), range(0x7F, 0xA0), range(0x61C, 0x61D), range(0x200E, 0x2010), range(0x202A, 0x202F)),
        *(range(0x2066, 0x206A), range(0xD800, 0xE000)),
    )
    for code in span
    if chr(code) not in _HARMLESS
}


class Terminal(Console):
    """Rich's console for lines that are laid out already: nothing is wrapped, highlighted or read as markup."""

    def __init__(self, *, most_cells: int | None = None) -> None:
        """Write to stdout; `most_cells` bounds the width on a terminal that is wider."""
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=True)
        if most_cells is not None:
            self.width = min(self.width, most_cells)

    @property
    def line_cells(self) -> int | None:
        """How wide a line may be; None where nobody looks at it and cutting would lose text."""
        return self.width if self.is_terminal else None

    def columns(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows in columns below a header, aligned by cells; the last column is cut to the terminal's width."""
        table = [list(header), *([one_line(cell) for cell in row] for row in rows)]
        widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)][:-1]
        for number, row in enumerate(table):
            padded = [cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=False)]
            line = Text("  ".join([*padded, row[-1]]).rstrip(), style="" if number else "dim")
            if self.line_cells is not None:
                line.truncate(self.line_cells, overflow="ellipsis")
            self.print(line)

    def facts(self, facts: Sequence[tuple[str, str]]) -> None:
        """Print names and what is said of each, aligned."""
        width = max(cell_len(name) for name, _ in facts)
        for name, fact in facts:
            self.print(Text.assemble((f"{name:<{width}}  ", "dim"), one_line(fact)))


def printable(text: str) -> str:
    """`text` without what could drive a terminal or change the order in which a line is read.

    Control characters other than newline and tab, marks of direction, lone surrogates.
    """
    return text.translate(_REPLACED)


def one_line(text: str) -> str:
    """`text` printable and on one line."""
    return " ".join(printable(text).split())


def print_json(value: Any) -> None:
    """Print `value` as one line of JSON, at once: a follower may be reading."""
    print(encode_json(value, "the output").decode(), flush=True)


def note(text: str) -> None:
    """Say something about the command itself, on stderr: output stays what was asked for."""
    print(one_line(text), file=sys.stderr, flush=True)
