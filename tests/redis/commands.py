"""The command line as a user's shell runs it, and in this process where nothing depends on one of its own."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

from bub_redis.cli.app import execute
from bub_redis.settings import Settings


def environment(settings: Settings | None = None, **variables: str) -> dict[str, str]:
    """The environment of a command: nothing of ours but what is given."""
    ours = {} if settings is None else {"BUB_REDIS_URL": settings.queue_address, "BUB_NAMESPACE": settings.namespace}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BUB_")}
    home = {"BUB_HOME": "/nonexistent/home"}
    return inherited | home | ours | variables


def invoke(*arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """`bub-redis` with these arguments, in this process: no event loop may be running."""
    output, complaints = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, env, clear=True), redirect_stdout(output), redirect_stderr(complaints):
        code = execute(arguments)
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), complaints.getvalue())


def bub_redis(
    *arguments: str, env: Mapping[str, str], timeout_s: float = 30, stdin: str | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`bub-redis` with these arguments, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "bub_redis.cli", *arguments],
        env=env,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def start(
    *arguments: str, env: Mapping[str, str], cwd: Path | None = None, stdin: int | None = subprocess.PIPE
) -> subprocess.Popen[str]:
    """`bub-redis` with these arguments, under way."""
    return subprocess.Popen(
        [sys.executable, "-m", "bub_redis.cli", *arguments],
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def json_lines(finished: subprocess.CompletedProcess[str]) -> list[Any]:
    """What a command printed with `--json`. Only LF ends a line: U+2028 may stand in one (case 189)."""
    return [json.loads(line) for line in finished.stdout.split("\n") if line]


def complaint(finished: subprocess.CompletedProcess[str]) -> str:
    """What a refused command said, after checking that it is one line and no more."""
    lines = finished.stderr.splitlines()
    assert len(lines) == 1, finished.stderr
    assert lines[0].startswith("error: "), finished.stderr
    return lines[0].removeprefix("error: ")
