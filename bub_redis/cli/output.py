"""What reaches the terminal: text that cannot move its cursor, and JSON one value a line."""

from typing import Any

from rich.console import Console

from bub_redis.tape.entry import encode_json

_HARMLESS = "\n\t"
_REPLACED = {
    code: "\ufffd"
    for span in (range(0x20), range(0x7F, 0xA0), range(0xD800, 0xE000))
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

    def on_broken_pipe(self) -> None:
        """Leave a broken pipe to `running.run`; rich, which calls this where it caught it, would end the process."""
        raise


def printable(text: str) -> str:
    """`text` without what could drive a terminal: control characters other than newline and tab, lone surrogates."""
    return text.translate(_REPLACED)


def one_line(text: str) -> str:
    """`text` printable and on one line."""
    return " ".join(printable(text).split())


def print_json(value: Any) -> None:
    """Print `value` as one line of JSON, at once: a follower may be reading."""
    print(encode_json(value, "the output").decode(), flush=True)
