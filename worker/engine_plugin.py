"""The engine's general plugin: what must hold in each process that the engine starts.

Registered under the entry point group `vllm.general_plugins`; the engine calls
`register` once in every process of its own, also in spawned ones.
"""

import json
import multiprocessing
import os

from worker import engine_repairs, typical_acceptance
from worker.lifeline import die_with_parent


def register() -> None:
    """Mend the engine's known faults, put the acceptance rule in force, tie the process.

    A forked process is tied already.
    """
    engine_repairs.apply()
    numbers = os.environ.get(typical_acceptance.VARIABLE)
    if numbers:
        typical_acceptance.install(typical_acceptance.Rule(**json.loads(numbers)))
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with_parent(parent.pid)
