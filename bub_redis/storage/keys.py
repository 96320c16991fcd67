"""Every key of this project, built here and nowhere else. docs/design.md, section 3, says what each one holds."""

import re
from dataclasses import dataclass
from functools import cached_property

from bub_redis.errors import ConfigError
from bub_redis.tape.names import SIDECAR_MARKER, encode_name, owner_tape

DEFAULT_NAMESPACE = "bub"
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,32}")


def check_namespace(namespace: str) -> str:
    """Return `namespace` if keys may begin with it. Raises ConfigError."""
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigError(f"a namespace is 1 to 32 of A-Z a-z 0-9 _ -, not {namespace!r}; mend BUB_NAMESPACE")
    return namespace


@dataclass(frozen=True)
class TapeKeys:
    """The keys of one tape. The encoded name of its owner is the hash tag, so all of them share a cluster slot."""

    namespace: str
    name: str

    @cached_property
    def _owner(self) -> str:
        return f"{self.namespace}:{{{encode_name(owner_tape(self.name))}}}"

    @property
    def sidecar(self) -> str:
        """The name of the sidecar whose tape this is; empty for a tape that is its own owner."""
        return self.name.partition(SIDECAR_MARKER)[2]

    @cached_property
    def tape(self) -> str:
        """Stream: the entries."""
        return f"{self._owner}{SIDECAR_MARKER}{self.sidecar}:tape" if self.sidecar else f"{self._owner}:tape"

    @property
    def anchors(self) -> str:
        """Sorted set: every anchor, score = entry number, member = `<stream id> <name>`."""
        return f"{self.tape}:anchors"

    @property
    def latest(self) -> str:
        """Hash: anchor name → stream id of its latest."""
        return f"{self.anchors}:latest"

    @property
    def written(self) -> tuple[str, str, str]:
        """What a block writes: stream, anchors, latest of each name."""
        return self.tape, self.anchors, self.latest

    @property
    def state(self) -> str:
        """Hash: where the tape and each of its sidecars stands, the last receipt, the open turn."""
        return f"{self._owner}:state"

    @property
    def prefix(self) -> str:
        """What the fields of this tape in `state` begin with: nothing, or `<sidecar>/`."""
        return f"{self.sidecar}/" if self.sidecar else ""

    def fields(self, *names: str) -> list[str]:
        """The fields of this tape in `state` that have these names."""
        return [self.prefix + name for name in names]

    @property
    def turns(self) -> str:
        """Hash: committed turn → `<stream id of its receipt> <status> <steers used>`."""
        return f"{self._owner}:turns"

    @property
    def lock(self) -> str:
        """String with a TTL: who works on the session now."""
        return f"{self._owner}:lock"

    @property
    def fence(self) -> str:
        """String: `<token>:<secret>` of the last grant."""
        return f"{self._owner}:fence"

    @property
    def batches(self) -> tuple[str, str]:
        """Two hashes with a TTL: direct appends that were made, so that a repeat is not made again."""
        return f"{self._owner}:batches:0", f"{self._owner}:batches:1"

    @property
    def parked_turns(self) -> str:
        """Sorted set with a TTL: turn or run with a parked overlay → when it was parked, in ms."""
        return f"{self._owner}:parked"

    def parked(self, turn: str) -> str:
        """Stream with a TTL: the overlay of a merge that the fence refused."""
        return f"{self._owner}:parked:{encode_name(turn)}"

    @property
    def damaged(self) -> str:
        """Stream: what others had written into this tape's stream, as a repair set it aside; `id` is the id of then."""
        return f"{self.tape}:damaged"

    def set_aside(self, key: str, at_ms: int) -> str:
        """Where a repair puts a key of this tape that is of another type."""
        return f"{key}:damaged:{at_ms}"

    @property
    def set_aside_pattern(self) -> str:
        """What the names of all keys match that repairs set aside, of this tape and of its sidecars."""
        return f"{self._owner}*:damaged:*"

    def rebuilt(self, repair: str) -> tuple[str, str, str, str]:
        """Turns, tape, anchors and latest as a repair makes them anew, with a TTL until they take the others' place."""
        turns, stream, anchors, latest = (f"{key}:rebuilt:{repair}" for key in (self.turns, *self.written))
        return turns, stream, anchors, latest

    def frames(self, turn: str) -> str:
        """Stream with a TTL: what followers of a turn see."""
        return f"{self._owner}:frames:{encode_name(turn)}"

    def journal(self, turn: str) -> str:
        """Stream until commit: the overlay's log of a worker's turn."""
        return f"{self._owner}:journal:{encode_name(turn)}"


def known_tapes(namespace: str) -> str:
    """Sorted set, in a slot of its own: the names of all tapes by last commit in ms."""
    return f"{namespace}:tapes"


def full_turn_id(tape: str, turn: str) -> str:
    """`<T>/<turn>`, both encoded: ids are the sender's and unique per session only."""
    return f"{encode_name(tape)}/{encode_name(turn)}"


@dataclass(frozen=True)
class QueueKeys:
    """The queue side's keys, on one primary. Scripts there add an encoded id to a prefix: the head is found inside."""

    namespace: str

    @property
    def queue_prefix(self) -> str:
        """Before an encoded tape name: list of the session's turns that have not ended."""
        return f"{self.namespace}:queue:"

    @property
    def turn_prefix(self) -> str:
        """Before a full turn id: hash of all about the turn."""
        return f"{self.namespace}:turn:"

    @property
    def receipt_prefix(self) -> str:
        """Before an encoded tape name: hash with id and digest of the last receipt shown to finish."""
        return f"{self.namespace}:receipt:"

    @property
    def leases(self) -> str:
        """Sorted set: running turn → deadline in ms."""
        return f"{self.namespace}:leases"

    @property
    def waiting(self) -> str:
        """Sorted set: dispatched head that no worker started yet → deadline in ms."""
        return f"{self.namespace}:waiting"

    @property
    def dispatches(self) -> str:
        """Counter: one more at each dispatch, the order of attempts."""
        return f"{self.namespace}:dispatches"

    @property
    def dead(self) -> str:
        """Sorted set: turns that ended as poison → when, in ms."""
        return f"{self.namespace}:dead"

    @property
    def open_turns(self) -> str:
        """Counter: turns that have not ended, in all sessions."""
        return f"{self.namespace}:open"

    @property
    def control_prefix(self) -> str:
        """Before a worker id: list of hints that a turn of that worker was cancelled or steered."""
        return f"{self.namespace}:control:"

    @property
    def wake(self) -> str:
        """List: hints that there is work."""
        return f"{self.namespace}:wake"

    @property
    def arq(self) -> str:
        """Sorted set: arq's queue, ours by name; job id → the ms from which it may be claimed."""
        return f"{self.namespace}:arq"

    @property
    def job_prefix(self) -> str:
        """What arq's job ids of this namespace begin with."""
        return f"{self.namespace}/"

    @property
    def workers(self) -> str:
        """Sorted set: workers → when they last showed that they live, in ms."""
        return f"{self.namespace}:workers"

    def worker(self, worker_id: str) -> str:
        """Hash with a TTL: heartbeat and load of one worker."""
        return f"{self.namespace}:worker:{worker_id}"

    def queue(self, tape: str) -> str:
        """The list of one session's turns."""
        return self.queue_prefix + encode_name(tape)

    def turn(self, full_id: str) -> str:
        """The hash of one turn."""
        return self.turn_prefix + full_id

    def steers(self, full_id: str) -> str:
        """List: full ids of the steering messages of one turn, in order; each is kept as the turn it may become."""
        return f"{self.turn(full_id)}:steer"


ARQ_JOB_PREFIX = "arq:job:"
"""arq's own constant: before a job id, the job's body."""
