"""No child outlives the worker, however the worker ends.

The engine's core does not watch its parent: after a SIGKILL of the worker it stayed, with
the accelerator's memory. Linux can tell it: `prctl(PR_SET_PDEATHSIG)`, see prctl(2). A
forked child asks for it through `os.register_at_fork`, a spawned one through the engine's
plugin (`engine_plugin.py`). The heartbeat process of the SDK is a forked child as well.
The kernel takes the thread that forked for the parent, so only the main thread's children
are tied: those of another would die with it.
"""

import ctypes
import os
import signal
import sys
import threading

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
    parent: int | None = None

    def remember() -> None:
        nonlocal parent
        in_main_thread = threading.current_thread() is threading.main_thread()
        parent = os.getpid() if in_main_thread else None

    def tie() -> None:
        if parent is not None:
            die_with_parent(parent)

    os.register_at_fork(before=remember, after_in_child=tie)
