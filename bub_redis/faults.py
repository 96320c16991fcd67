"""Named crash points, off by default: `BUB_FAULTS=after-merge` kills the process when it gets there.

A point costs one comparison with an empty set when off. `NAME` alone kills at the first pass, `NAME@3` at the third.
The crash tests walk the table of docs/design.md with them. This module imports nothing of the project.
"""

import os
import signal
from collections import Counter

_armed: dict[str, int] = {}
_passes: Counter[str] = Counter()


def arm(spec: str) -> None:
    """Arm the points of `spec`, comma-separated `NAME` or `NAME@PASS`; an empty text disarms all."""
    _armed.clear()
    _passes.clear()
    for item in filter(None, (part.strip() for part in spec.split(","))):
        name, _, nth = item.partition("@")
        _armed[name] = int(nth or 1)


def point(name: str) -> None:
    """Kill this process with SIGKILL if `name` is armed and this is the pass it is armed for."""
    if name not in _armed:
        return
    _passes[name] += 1
    if _passes[name] == _armed[name]:
        os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get("BUB_FAULTS", ""))
