"""Where a model's files are: the embedded model, a folder, or a Hugging Face repository."""

from collections.abc import Callable

from worker import embedded_model
from worker.engine_args import EnginePlan


def locate(plan: EnginePlan, say: Callable[[str], None]) -> str:
    """What the engine is told to load: a folder, or a repository's id.

    The embedded model is prepared where that is still to be done; `say` gets a line for
    each step. Raises `WorkerError` where it cannot be prepared.
    """
    if plan.is_embedded:
        return str(embedded_model.prepare(say))
    return str(plan.arguments["model"])
