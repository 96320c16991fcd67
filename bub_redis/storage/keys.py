"""Every key of this project, built here and nowhere else. docs/design.md, section 3, says what each one holds."""

import re
from dataclasses import dataclass

from bub_redis.errors import ConfigError
from bub_redis.tape.names import SIDECAR_MARKER, encode_name

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

    @property
    def _owner(self) -> str:
        owner, marker, sidecar = self.name.partition(SIDECAR_MARKER)
        suffix = f"{marker}{encode_name(sidecar)}" if marker else ""
        return f"{self.namespace}:{{{encode_name(owner)}}}{suffix}"

    @property
    def tape(self) -> str:
        """Stream: the entries."""
        return f"{self._owner}:tape"

    @property
    def anchors(self) -> str:
        """Sorted set: every anchor, score = entry number, member = `<stream id> <name>`."""
        return f"{self._owner}:tape:anchors"

    @property
    def latest(self) -> str:
        """Hash: anchor name → stream id of its latest."""
        return f"{self._owner}:tape:anchors:latest"

    @property
    def state(self) -> str:
        """Hash: generation, count, last number, ms, last receipt, the open turn."""
        return f"{self._owner}:state"

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

    def batch(self, batch_id: str) -> str:
        """String with a TTL: a direct append that was made, so that its repeat is not made again."""
        return f"{self._owner}:batch:{batch_id}"

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

    def worker(self, worker_id: str) -> str:
        """Hash with a TTL: heartbeat and load of one worker."""
        return f"{self.namespace}:worker:{worker_id}"

    def queue(self, tape: str) -> str:
        """The list of one session's turns."""
        return self.queue_prefix + encode_name(tape)

    def turn(self, full_id: str) -> str:
        """The hash of one turn."""
        return self.turn_prefix + full_id


ARQ_JOB_PREFIX = "arq:job:"
"""arq's own constant: before a job id, the job's body."""
