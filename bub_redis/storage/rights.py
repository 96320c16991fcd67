"""What a server's user must be allowed to do, and finding out without doing it: commands queued in MULTI are checked
against the user's rights and keys at once, and DISCARD drops them. deploy/users.acl grants this and no more."""

from collections.abc import Sequence

from redis.exceptions import NoPermissionError, ResponseError

from bub_redis.storage.client import RedisServer
from bub_redis.storage.keys import ARQ_JOB_PREFIX, QueueKeys, TapeKeys, known_tapes

_KEY = "KEY"
COMMANDS: dict[str, tuple[str, ...]] = {
    # Connections and the server.
    "ping": (),
    "client|id": ("ID",),
    "client|unblock": ("UNBLOCK", "0"),
    "info": ("server",),
    "cluster|slots": ("SLOTS",),
    "asking": (),
    "time": (),
    "dbsize": (),
    "wait": ("0", "1"),
    # Scripts.
    "eval": ("return 1", "0"),
    "evalsha": ("0" * 40, "0"),
    "script|load": ("LOAD", "return 1"),
    # Keys and texts.
    "type": (_KEY,),
    "scan": ("0", "COUNT", "1"),
    "exists": (_KEY,),
    "rename": (_KEY, _KEY),
    "del": (_KEY,),
    "unlink": (_KEY,),
    "expire": (_KEY, "1"),
    "pexpire": (_KEY, "1"),
    "pexpireat": (_KEY, "1"),
    "persist": (_KEY,),
    "ttl": (_KEY,),
    "get": (_KEY,),
    "set": (_KEY, "1"),
    "setex": (_KEY, "1", "1"),
    "psetex": (_KEY, "1", "1"),
    "incr": (_KEY,),
    "incrby": (_KEY, "1"),
    "decr": (_KEY,),
    # Lists.
    "lpush": (_KEY, "1"),
    "rpush": (_KEY, "1"),
    "lpop": (_KEY,),
    "blpop": (_KEY, "1"),
    "lrange": (_KEY, "0", "0"),
    "lindex": (_KEY, "0"),
    "linsert": (_KEY, "BEFORE", "1", "1"),
    "llen": (_KEY,),
    "lrem": (_KEY, "1", "1"),
    "lpos": (_KEY, "1"),
    "ltrim": (_KEY, "0", "0"),
    # Hashes.
    "hget": (_KEY, "1"),
    "hmget": (_KEY, "1"),
    "hgetall": (_KEY,),
    "hkeys": (_KEY,),
    "hscan": (_KEY, "0"),
    "hset": (_KEY, "1", "1"),
    "hsetnx": (_KEY, "1", "1"),
    "hdel": (_KEY, "1"),
    "hincrby": (_KEY, "1", "1"),
    "hlen": (_KEY,),
    # Sorted sets.
    "zadd": (_KEY, "1", "1"),
    "zrem": (_KEY, "1"),
    "zremrangebyscore": (_KEY, "0", "0"),
    "zscore": (_KEY, "1"),
    "zcard": (_KEY,),
    "zcount": (_KEY, "0", "0"),
    "zrange": (_KEY, "0", "0"),
    "zrevrange": (_KEY, "0", "0"),
    "zrangebyscore": (_KEY, "0", "0"),
    "zrevrangebyscore": (_KEY, "0", "0"),
    # Streams.
    "xadd": (_KEY, "*", "1", "1"),
    "xrange": (_KEY, "-", "+"),
    "xrevrange": (_KEY, "+", "-"),
    "xread": ("STREAMS", _KEY, "0"),
    "xlen": (_KEY,),
    "xdel": (_KEY, "1-1"),
    "xinfo|stream": ("STREAM", _KEY),
}
"""Each command, its sub-command behind a bar as in an ACL rule, with arguments that it takes."""

UNTESTED = frozenset({"auth", "hello", "select", "client|setname", "multi", "exec", "discard", "watch", "unwatch"})
"""What is needed too and is either proved by being connected, or not taken inside MULTI."""


def queue_samples(namespace: str) -> list[str]:
    """A key of each pattern of the queue side, of nothing that exists."""
    keys = QueueKeys(namespace)
    return [keys.turn("doctor/doctor"), f"{ARQ_JOB_PREFIX}{keys.job_prefix}doctor/doctor:0"]


def tape_samples(namespace: str) -> list[str]:
    """A key of each pattern of the tape side, of nothing that exists."""
    return [TapeKeys(namespace, "doctor").frames("doctor"), f"{known_tapes(namespace)}:doctor"]


async def missing_rights(server: RedisServer, keys: Sequence[str]) -> list[str]:
    """The commands that the user may not run on one of `keys`, in the order of COMMANDS; nothing is run.

    `multi` alone where not even that is allowed, since nothing can be tried then. Raises Outage.
    """
    trials = [
        (name, (name.partition("|")[0], *(key if part == _KEY else part for part in arguments)))
        for name, arguments in COMMANDS.items()
        for key in (keys if _KEY in arguments else keys[:1])
    ]
    denied: list[str] = []
    with server.outages():
        pool = server.commands.connection_pool
        connection = await pool.get_connection("_")
        try:
            await connection.send_command("MULTI")
            await connection.read_response()
            commands = [*(command for _, command in trials), ("DISCARD",)]
            await connection.send_packed_command(connection.pack_commands(commands))
            for name, _ in trials:
                try:
                    await connection.read_response()
                except NoPermissionError:
                    denied.append(name)
                except ResponseError:
                    # Refused for another reason, such as one that this version does not know: it may be run.
                    continue
            await connection.read_response()
        except NoPermissionError:
            # MULTI or DISCARD itself: the connection may stand in the middle of a transaction.
            denied.append("multi")
            await connection.disconnect()
        finally:
            await pool.release(connection)
    return list(dict.fromkeys(denied))
