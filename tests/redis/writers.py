"""Processes that write to one tape as fast as they can, until they are done or killed."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Literal

from bub_redis.storage import RedisTapeStore
from bub_redis.tape import Tape, TapeEntry, TapeSidecar

TAPE = "shared"
NOTES = TapeSidecar("notes")
BLOCK_ENTRIES = 4
MERGE_EVERY = 10
LEASE_S = 0.6


def step(name: str, number: int, place: int = 0) -> TapeEntry:
    """The entry of one step of a writer."""
    return TapeEntry.event("step", {"writer": name, "number": number, "place": place})


@contextmanager
def writer(
    url: str, namespace: str, name: str, steps: int, kind: Literal["mixed", "merges"]
) -> Iterator[tuple[BaseProcess, Connection]]:
    """A process that writes `steps` steps, killed at the end, and where it tells each one that was acknowledged.

    A step is a merge; of `mixed` ones nine in ten are appends.
    """
    # Forked from a process that has imported all this, so that it starts at once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    told, telling = context.Pipe(duplex=False)
    process = context.Process(target=_write, args=(url, namespace, name, steps, kind, telling))
    process.start()
    telling.close()
    try:
        yield process, told
    finally:
        process.kill()
        process.join()
        told.close()


def _write(url: str, namespace: str, name: str, steps: int, kind: str, telling: Connection) -> None:
    asyncio.run(_steps(url, namespace, name, steps, kind, telling))


async def _steps(url: str, namespace: str, name: str, steps: int, kind: str, telling: Connection) -> None:
    async with RedisTapeStore.from_url(url, namespace=namespace, lease_s=LEASE_S) as store:
        tape = Tape(TAPE, store, sidecars=[NOTES])
        for number in range(steps):
            if kind == "mixed" and number % MERGE_EVERY:
                await tape.append(step(name, number))
            else:
                await merge(tape, name, number)
            telling.send(number)


async def merge(tape: Tape, name: str, number: int) -> None:
    """Merge one block, with as many entries in the sidecar as on the tape."""
    async with tape.fork_tape(run_id=f"{name}-{number}", wait_s=60.0) as fork:
        for place in range(BLOCK_ENTRIES):
            await fork.append(step(name, number, place))
            await fork.store.append(fork.sidecar_tape_name("notes"), step(name, number, place))
