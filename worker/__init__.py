"""The worker process: arq as shell and doorbell, our queue as the truth.

`arq worker.WorkerSettings` runs the same job on a stock arq worker, without fast wake-up and outage handling.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    # Built when arq asks for it: importing this package must not read the environment.
    if name == "WorkerSettings":
        from worker.settings import stock_worker_settings

        return stock_worker_settings()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
