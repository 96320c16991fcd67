"""The server and the workers of a chaos run, and what can be done to them."""

import asyncio
import random
import signal
import socket
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from bub_redis.settings import Settings, load_settings
from bub_redis.storage.cluster import slot_of
from bub_redis.storage.keys import TapeKeys
from bub_redis.testing import EmbeddedServer
from tests.chaos.plan import Plan
from tests.redis.cluster import running_cluster
from tests.redis.workers import kill, start_worker

AGENT = "tests.redis.agents:agent"


class Fleet:
    """Workers on one server. Whatever is done to them, `repair` makes them whole again."""

    def __init__(self, plan: Plan, data: Path, binary: str | None) -> None:
        self._plan = plan
        self._random = random.Random(f"faults {plan.seed}")
        self.server = EmbeddedServer(binary=binary, data_dir=data, appendonly=True)
        self.server.start()
        self._open = ExitStack()
        self.cluster = self._open.enter_context(running_cluster(data / "cluster")) if plan.on_cluster else None
        self.settings: Settings = load_settings(
            redis_url=self.server.url,
            tape_url=self.cluster and self.cluster.url,
            lease_s=1.5,
            beat_s=0.3,
            reconcile_s=0.1,
            waiting_grace_s=1.0,
            drain_s=0.2,
            max_jobs=8,
        )
        self._workers = [self._start() for _ in range(plan.workers)]
        self._stopped: set[int] = set()
        self._server_kills = plan.server_kills
        self.faults: Counter[str] = Counter()

    def _start(self) -> subprocess.Popen[bytes]:
        return start_worker(self.settings, AGENT)

    async def break_something(self) -> None:
        """One fault, chosen by the seed."""
        fault = self._random.choices(
            [self._kill_worker, self._end_worker, self._stop_worker, self._kill_server, self._flush_scripts],
            weights=[5, 3, 3, 1, 1],
        )[0]
        if self.cluster is not None and self._random.random() < 0.4:
            fault = self._random.choices([self._move_slot, self._kill_node], weights=[4, 1])[0]
        await fault()

    async def repair(self) -> None:
        """All workers run, and nothing is stopped."""
        for place, worker in enumerate(self._workers):
            worker.send_signal(signal.SIGCONT)
            if worker.poll() is not None:
                self._workers[place] = self._start()

    def close(self) -> None:
        """End everything."""
        for worker in self._workers:
            kill(worker)
        self.server.stop()
        self._open.close()

    async def _move_slot(self) -> None:
        """Move all keys of a session to another node while it is worked on."""
        assert self.cluster is not None
        self.faults["a slot moved"] += 1
        tape = f"session {self._random.randrange(self._plan.sessions)}"
        key = TapeKeys(self.settings.namespace, tape).tape
        source = self.cluster.primary_of(key)
        target = self._random.choice([node for node in self.cluster.nodes if node is not source])
        await asyncio.to_thread(self.cluster.move, slot_of(key), source, target)

    async def _kill_node(self) -> None:
        assert self.cluster is not None
        self.faults["SIGKILL of a node of the cluster"] += 1
        node = self._random.choice(self.cluster.nodes)
        node.server.kill()
        node.server.restart()
        await asyncio.to_thread(self.cluster.wait_until_whole)

    async def _replace(self, place: int) -> None:
        await asyncio.to_thread(self._workers[place].wait)
        self._workers[place] = self._start()

    async def _kill_worker(self) -> None:
        place = self._random.randrange(len(self._workers))
        self.faults["SIGKILL of a worker"] += 1
        self._workers[place].kill()
        await self._replace(place)

    async def _end_worker(self) -> None:
        place = self._random.randrange(len(self._workers))
        if place in self._stopped:
            return
        self.faults["SIGTERM of a worker"] += 1
        self._workers[place].terminate()
        await self._replace(place)

    async def _stop_worker(self) -> None:
        place = self._random.randrange(len(self._workers))
        if place in self._stopped:
            return
        self.faults["SIGSTOP of a worker"] += 1
        worker = self._workers[place]
        worker.send_signal(signal.SIGSTOP)
        self._stopped.add(place)
        pause_s = self._random.uniform(0.5, 3 * self.settings.lease_s)
        asyncio.get_running_loop().call_later(pause_s, self._go_on, place, worker)

    def _go_on(self, place: int, worker: subprocess.Popen[bytes]) -> None:
        self._stopped.discard(place)
        if worker.poll() is None:
            worker.send_signal(signal.SIGCONT)

    async def _kill_server(self) -> None:
        if not self._server_kills:
            return
        self._server_kills -= 1
        self.faults["SIGKILL of the server"] += 1
        # On the loop's own thread: the server dies with the thread that started it.
        self.server.kill()
        self.server.restart()

    async def _flush_scripts(self) -> None:
        self.faults["script cache flushed"] += 1
        for server in [self.server, *(node.server for node in (self.cluster.nodes if self.cluster else []))]:
            await asyncio.to_thread(_flush_scripts, server)


def _flush_scripts(server: EmbeddedServer) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        connection.connect(str(server.socket_path))
        connection.sendall(b"SCRIPT FLUSH\r\n")
        connection.recv(64)
