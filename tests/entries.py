"""Entries as tests write and read them."""

from collections.abc import Iterable

from bub_redis.tape import TapeEntry


def say(text: str, role: str = "user") -> TapeEntry:
    """A message of that text."""
    return TapeEntry.message({"role": role, "content": text})


def texts(entries: Iterable[TapeEntry]) -> list[str]:
    """The texts of the messages among `entries`, in order."""
    return [entry.text for entry in entries if entry.kind == "message"]
