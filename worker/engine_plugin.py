"""The engine's general plugin: what must hold in each process that the engine starts.

Registered under the entry point group `vllm.general_plugins`; the engine calls
`register` once in every process of its own, also in spawned ones.
"""

import multiprocessing

from worker import engine_repairs
from worker.lifeline import die_with_parent


def register() -> None:
    """Mend the engine's known faults, and tie a spawned process to its parent.

    A forked process is tied already.
    """
    engine_repairs.apply()
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with_parent(parent.pid)
