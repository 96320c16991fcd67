"""Become another program that the kernel kills when the parent ends: `tied.py PARENT_PID PROGRAM ARGS...`.

Run as a file by `server`, on Linux. A program of its own, rather than a hook between fork and exec, because a
Python function run there can deadlock on a lock that another thread of the parent held.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tied_command(command: Sequence[str]) -> list[str]:
    """`command`, its program a path, such that the kernel kills it when the *thread* that starts it ends.

    As it is where there is no such kernel.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


if __name__ == "__main__":
    parent_pid, program = int(sys.argv[1]), sys.argv[2]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A parent that died before the line above sends no signal any more.
    if os.getppid() == parent_pid:
        os.execv(program, sys.argv[2:])  # noqa: S606 - the point of this file
