"""No child outlives the worker, however the worker ends.

The engine's core does not watch its parent: after a SIGKILL of the worker it stayed, with
the accelerator's memory. Linux can tell it: `prctl(PR_SET_PDEATHSIG)`, see prctl(2). A
forked child asks for it through `os.register_at_fork`, a spawned one through the engine's
plugin (`engine_plugin.py`). The heartbeat process of the SDK is a forked child as well.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when `parent`, its parent's pid, has ended."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request
        os.kill(os.getpid(), signal.SIGKILL)


def tie_forked_children() -> None:
    """Tie every process forked from here, and from there, to its parent. Call once."""
    parent = os.getpid()

    def remember() -> None:
        nonlocal parent
        parent = os.getpid()

    os.register_at_fork(before=remember, after_in_child=lambda: die_with_parent(parent))
