"""What redis-cli shows on a terminal, and the command lines that make it show it."""

import shlex
from collections.abc import Iterator, Sequence

Reply = bytes | Sequence["Reply"]

_NAMED = {ord("\\"): "\\\\", ord('"'): '\\"', 10: "\\n", 13: "\\r", 9: "\\t", 7: "\\a", 8: "\\b"}


def connection(address: str) -> tuple[str, str]:
    """The options that lead to a server, of which `address` is the URL without secrets."""
    path = address.removeprefix("unix://")
    return ("-u", address) if path == address else ("-s", path)


def command_line(connection: Sequence[str], *command: str) -> str:
    """The command as a shell takes it, keys quoted."""
    return shlex.join(["redis-cli", *connection, *command])


def stream_reply(page: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> Reply:
    """What XRANGE answered, as it came over the wire: an id, then fields and values in turn."""
    return [[entry_id, [part for pair in fields.items() for part in pair]] for entry_id, fields in page]


def reply_lines(reply: Reply, prefix: str = "") -> Iterator[str]:
    """The lines of a reply made of texts and arrays, as redis-cli writes them: numbered, nested, escaped."""
    if isinstance(reply, bytes):
        yield _quoted(reply)
        return
    if not reply:
        yield "(empty array)"
        return
    digits = len(str(len(reply)))
    indent = prefix + " " * (digits + 2)
    for number, element in enumerate(reply, start=1):
        first, *others = reply_lines(element, indent)
        # The first element stands beside the number that the reply itself has.
        yield f"{'' if number == 1 else prefix}{number:>{digits}}) {first}"
        yield from others


def _quoted(value: bytes) -> str:
    shown = (_NAMED.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in value)
    return f'"{"".join(shown)}"'
