"""Removing the demo's keys from a server of the user's: by name, so that no right to list keys is needed."""

from collections.abc import Iterator, Sequence

from bub_redis.cli.demo.cast import LIVE_LINES, QUICK_LINES, SLOW_LINES, Line
from bub_redis.storage.keys import ARQ_JOB_PREFIX, QueueKeys, TapeKeys, full_turn_id, known_tapes
from bub_redis.tape.names import encode_name
from bub_redis.tape.sidecar import sidecar_tape_name
from bub_redis.tape.spill import SPILL_SIDECAR
from bub_redis.turns import TurnClient

_MOST_ATTEMPTS = 20
_SWEPT_AT_ONCE = 500
_ARQ_PREFIXES = (ARQ_JOB_PREFIX, "arq:in-progress:", "arq:retry:", "arq:result:")


async def sweep(client: TurnClient, namespace: str, workers: Sequence[str]) -> None:
    """Remove every key that the demo's turns and `workers`, which have ended, can have made. May be repeated."""
    lines = (*QUICK_LINES, *LIVE_LINES, *SLOW_LINES)
    keys = [*_tape_side(namespace, lines), *_queue_side(namespace, lines, workers)]
    for server in {client.server, client.store.server}:
        with server.outages():
            for start in range(0, len(keys), _SWEPT_AT_ONCE):
                await server.commands.unlink(*keys[start : start + _SWEPT_AT_ONCE])


def _tape_side(namespace: str, lines: Sequence[Line]) -> Iterator[str]:
    yield known_tapes(namespace)
    for session in {line.session for line in lines}:
        keys = TapeKeys(namespace, session)
        yield from (*keys.written, keys.state, keys.turns, keys.lock, keys.fence, *keys.batches, keys.parked_turns)
        yield from TapeKeys(namespace, sidecar_tape_name(session, SPILL_SIDECAR)).written
    for line in lines:
        keys = TapeKeys(namespace, line.session)
        yield from (keys.frames(line.turn_id), keys.journal(line.turn_id), keys.parked(line.turn_id))


def _queue_side(namespace: str, lines: Sequence[Line], workers: Sequence[str]) -> Iterator[str]:
    keys = QueueKeys(namespace)
    yield from (keys.leases, keys.waiting, keys.dispatches, keys.dead, keys.open_turns, keys.wake, keys.workers)
    yield from (keys.arq, f"{keys.arq}:health-check")
    for worker in workers:
        yield from (keys.worker(worker), keys.control_prefix + worker)
    for line in lines:
        full_id = full_turn_id(line.session, line.turn_id)
        yield from (keys.queue(line.session), keys.receipt_prefix + encode_name(line.session))
        yield from (keys.turn(full_id), keys.steers(full_id))
        for prefix in _ARQ_PREFIXES:
            yield from (f"{prefix}{keys.job_prefix}{full_id}:{attempt}" for attempt in range(1, _MOST_ATTEMPTS + 1))
