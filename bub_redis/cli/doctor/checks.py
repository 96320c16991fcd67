"""What the doctor looks at: one function for each subject, each a list of findings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from bub_redis.settings import Settings, mistyped_variables
from bub_redis.storage.client import RedisServer
from bub_redis.storage.health import Health
from bub_redis.storage.rights import COMMANDS, missing_rights
from bub_redis.turns.overview import OpenTurn, QueueCounts
from bub_redis.turns.workers import WorkerLoad

CLOCK_LIMIT_S = 5.0
"""How far clocks may differ before dates on the tapes mislead. Leases do not mind: only the server's clock counts."""
_FULL = 0.8
_TRIPS_PER_BEAT = 10
_ARQ = "0.28."
_ROLES = {"slave": "replica"}
_ON_KEYS = frozenset(name for name, arguments in COMMANDS.items() if "KEY" in arguments)

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    level: Level
    found: str
    remedy: str = ""


def settings_findings() -> Iterator[Finding]:
    """Variables that are no settings, and look as if they were meant to be."""
    for given, meant in mistyped_variables().items():
        yield Finding("settings", "warning", f"{given} is no setting and is not read", f"did you mean {meant}?")


def server_findings(side: str, address: str, health: Health) -> Iterator[Finding]:
    """Version, role, persistence, memory and clock of one server; `address` is its URL without secrets."""
    info = health.info
    yield Finding(f"{side} server", "ok", f"{info.name} {info.version} at {address}")
    if health.role == "master":
        yield Finding(f"{side} role", "ok", "primary")
    else:
        role = _ROLES.get(health.role, health.role)
        yield Finding(f"{side} role", "problem", role, "name the primary in the URL: a replica takes no writes")
    yield _persistence(side, health)
    if info.may_drop_tapes:
        remedy = "CONFIG SET maxmemory-policy noeviction, and the same in its configuration"
        yield Finding(f"{side} eviction", "problem", f"{info.eviction_policy}: it may drop tapes", remedy)
    else:
        yield Finding(f"{side} eviction", "ok", info.eviction_policy)
    yield _memory(side, health)
    yield _clock(side, health)


def _persistence(side: str, health: Health) -> Finding:
    what = f"{side} persistence"
    if not health.info.append_only:
        return Finding(what, "problem", "no append-only file", "appendonly yes: a restart would lose turns and tapes")
    if not health.aof_ok:
        return Finding(what, "problem", "the append-only file cannot be written", "make room on the server's disk")
    return Finding(what, "ok", "append-only file")


def _memory(side: str, health: Health) -> Finding:
    used = f"{health.used_bytes / 2**20:.1f} MiB used"
    if not health.max_bytes:
        return Finding(f"{side} memory", "ok", f"{used}, no limit set")
    found = f"{used} of {health.max_bytes / 2**20:.1f} MiB"
    if health.used_bytes > _FULL * health.max_bytes:
        return Finding(f"{side} memory", "warning", found, "raise maxmemory: a full server takes no more turns")
    return Finding(f"{side} memory", "ok", found)


def _clock(side: str, health: Health) -> Finding:
    ahead_s = health.clock_ahead_s
    found = f"{abs(ahead_s):.3f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    if abs(ahead_s) > CLOCK_LIMIT_S:
        return Finding(f"{side} clock", "warning", found, "set both clocks (NTP): dates on the tapes mislead")
    return Finding(f"{side} clock", "ok", found)


async def rights_finding(side: str, server: RedisServer, keys: Sequence[str]) -> Finding:
    """The rights, one by one, each tried on keys like ours without being run; missing keys are told from commands."""
    denied = {key: await missing_rights(server, [key]) for key in keys}
    untouched = [key for key, names in denied.items() if _ON_KEYS.issubset(names)]
    # What is refused for its key says nothing of the command.
    commands = dict.fromkeys(
        name for key, names in denied.items() for name in names if key not in untouched or name not in _ON_KEYS
    )
    if not (untouched or commands):
        return Finding(f"{side} rights", "ok", f"all {len(COMMANDS)} commands, on keys like {' '.join(keys)}")
    patterns = " ".join(dict.fromkeys(f"{key.partition(':')[0]}:*" for key in untouched))
    found = [f"the user may not touch keys like {patterns}"] if untouched else []
    found += [f"{len(commands)} of {len(COMMANDS)} commands are missing"] if commands else []
    granted = " ".join([*(f"~{pattern}" for pattern in patterns.split()), *(f"+{name}" for name in commands)])
    return Finding(f"{side} rights", "problem", "; ".join(found), f"grant {granted}, or use deploy/users.acl")


def lease_finding(settings: Settings, healths: Sequence[Health]) -> Finding:
    """Whether leases can be renewed in time over the round trips that were measured."""
    worst_s = max(health.worst_trip_s for health in healths)
    median_s = max(health.median_trip_s for health in healths)
    found = (
        f"lease {settings.lease_s:g} s, beat {settings.beat_s:g} s; "
        f"round trip {median_s * 1000:.1f} ms, at worst {worst_s * 1000:.1f} ms"
    )
    if worst_s * _TRIPS_PER_BEAT > settings.beat_s:
        remedy = "raise BUB_BEAT_S and BUB_LEASE_S, or move closer: a slow answer would lose leases"
        return Finding("leases", "problem" if worst_s > settings.beat_s else "warning", found, remedy)
    return Finding("leases", "ok", found)


def arq_findings(health: Health) -> Iterator[Finding]:
    """What our use of arq relies on."""
    installed = version("arq")
    if installed.startswith(_ARQ):
        yield Finding("arq", "ok", installed)
    else:
        yield Finding("arq", "problem", installed, f"pip install 'arq>={_ARQ}0': names of it that we use may differ")
    if health.info.is_cluster:
        remedy = "the queue side needs one primary: name it in BUB_REDIS_URL; BUB_TAPE_URL may name a cluster"
        yield Finding("queue topology", "problem", "a cluster", remedy)
    else:
        yield Finding("queue topology", "ok", "one primary")


def work_findings(counts: QueueCounts, workers: Sequence[WorkerLoad], turns: Sequence[OpenTurn]) -> Iterator[Finding]:
    """Whether somebody works, and what is stuck."""
    busy = f"{counts.running} running, {counts.waiting + counts.behind} waiting, {counts.dead} dead"
    if workers:
        yield Finding("workers", "ok", f"{len(workers)} alive; turns: {busy}")
    else:
        remedy = "start one: bub-redis worker MODULE:ATTRIBUTE"
        yield Finding("workers", "warning", f"none alive; turns: {busy}", remedy)
    for turn in turns:
        if turn.blocked:
            what = f"session {turn.turn.session}"
            yield Finding(what, "problem", f"blocked: {turn.handed_back}", f"bub-redis tape repair {turn.turn.session}")
