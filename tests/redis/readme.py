"""The README's blocks, and comparing what they show with what really comes out."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARYING = [
    (re.compile(r"\d{4}-\d\d-\d\d"), "DATE"),
    (re.compile(r"\d\d:\d\d:\d\d(\.\d+)?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "DIGEST"),
    (re.compile(r"\b\d+\.\d+ s\b"), "SECONDS"),
    (re.compile(r"\b\d+ ms\b"), "MILLISECONDS"),
    # Columns are padded to what stands in them.
    (re.compile(r" +(?=│)"), " "),
]


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    text: str


def blocks(page: str = "README.md") -> list[Block]:
    """All blocks of a page, in order."""
    return [Block(*found) for found in _FENCED.findall((ROOT / page).read_text(encoding="utf-8"))]


def with_output(first_words: str) -> tuple[str, str]:
    """The block that holds these words, and the output shown behind it."""
    found = blocks()
    place = next(place for place, block in enumerate(found) if first_words in block.text)
    shown = found[place + 1]
    assert shown.language == "text", f"no output is shown behind {first_words!r}"
    return found[place].text, shown.text


def settled(output: str) -> list[str]:
    """The lines of an output without what differs each time."""
    for pattern, word in _VARYING:
        output = pattern.sub(word, output)
    return [line.rstrip() for line in output.strip().split("\n")]
