"""The names of arq 0.28 that worker/ relies on and that are not arq's public face. A new arq must pass this first."""

import asyncio
import inspect
import json
import subprocess
import sys
from datetime import timedelta

from arq import constants
from arq.jobs import deserialize_job_raw
from arq.worker import Worker

from bub_redis.settings import Settings
from bub_redis.storage.keys import ARQ_JOB_PREFIX
from bub_redis.turns import Turn, TurnClient
from bub_redis.turns.record import Request
from worker.settings import arq_options


def test_our_job_body_is_one_that_arq_reads() -> None:
    request = Request(Turn("s", "s", "m1"), "hello")
    function, args, kwargs, job_try, enqueued_ms = deserialize_job_raw(request.job_body(), deserializer=json.loads)
    assert function == "run_turn"
    assert list(args) == ["s/m1"]
    assert kwargs == {}
    assert not job_try
    assert enqueued_ms > 0


def test_arqs_prefix_of_jobs_is_ours() -> None:
    assert constants.job_key_prefix == ARQ_JOB_PREFIX


def test_the_worker_has_the_names_we_override_and_call(settings: Settings) -> None:
    for name in ("main", "async_run", "_poll_iteration", "run_job", "_release_sem_dec_counter_on_complete", "close"):
        assert callable(getattr(Worker, name))
    source = inspect.getsource(Worker)
    for attribute in ("sem", "job_counter", "max_jobs", "tasks", "allow_pick_jobs", "main_task", "loop"):
        assert f"self.{attribute}" in source
    parameters = inspect.signature(Worker.__init__).parameters
    assert set(arq_options(settings)) <= set(parameters)


def test_run_job_takes_the_job_id_and_its_score() -> None:
    assert list(inspect.signature(Worker.run_job).parameters) == ["self", "job_id", "score"]


async def test_a_stock_arq_worker_runs_the_same_job(client: TurnClient, settings: Settings) -> None:
    turn = await client.enqueue("s", "hello")
    stock = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "arq",
        "worker.WorkerSettings",
        env={
            "BUB_REDIS_URL": settings.queue_address,
            "BUB_NAMESPACE": settings.namespace,
            "BUB_AGENT": "tests.redis.agents:agent",
        },
        stderr=subprocess.PIPE,
    )
    try:
        result = await client.result(turn, timeout=timedelta(seconds=20))
    finally:
        stock.terminate()
        _, logged = await stock.communicate()
    assert result.text == "echo: hello"
    assert b"worker.stock" in logged
