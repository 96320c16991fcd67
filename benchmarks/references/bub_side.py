"""Bub's file store: appending, and opening a long tape at its last anchor."""

import itertools
import shutil
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from bub.core.store import FileTapeStore, TapeQuery
from bub.core.tape import TapeEntry
from serve import Act, serve


async def begin(_url: str) -> dict[str, Act]:
    folder = Path(mkdtemp(prefix="bub-bench-"))
    numbers = itertools.count()

    async def append(message: dict[str, Any], count: int) -> float:
        store, tape = FileTapeStore(folder), f"append-{next(numbers)}"
        began = time.perf_counter()
        for _ in range(count):
            store.append(tape, TapeEntry.message(message))
        return count / (time.perf_counter() - began)

    async def fill(message: dict[str, Any], entries: int, behind: int) -> int:
        store = FileTapeStore(folder)
        for number in range(entries):
            store.append("long", TapeEntry.message(message))
            if number == entries - behind - 1:
                store.append("long", TapeEntry.anchor("topic"))
        return entries

    async def open(times: int) -> list[float]:
        found = []
        for _ in range(times):
            # A store as a process that opens the session has it: nothing of the file is in memory yet.
            store = FileTapeStore(folder)
            began = time.perf_counter()
            list(store.fetch_all(TapeQuery("long", store).last_anchor()))
            found.append(time.perf_counter() - began)
        return found

    async def leave() -> None:
        shutil.rmtree(folder)

    return {"append": append, "fill": fill, "open": open, "leave": leave}


if __name__ == "__main__":
    serve(begin)
