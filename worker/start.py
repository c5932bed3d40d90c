"""From an environment to a running engine, in the order that costs least.

Nothing heavy is imported before the configuration is known to be good.
"""

import logging
import os
import sys
import time
from collections.abc import Callable

from env_schema import Settings
from worker import lifeline, models, openai_app, process_setup, redaction
from worker.boot_log import BootLog
from worker.engine import Engine
from worker.engine_args import EnginePlan

log = logging.getLogger("worker")


def configure_logging(settings: Settings) -> None:
    """One handler for the worker's own lines, on stderr, cleaned of secrets."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_CleanFormatter(settings.secrets))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(settings.process.log_level or "INFO")


class _CleanFormatter(logging.Formatter):
    def __init__(self, secrets: tuple[str, ...]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return redaction.clean(super().format(record), self._secrets)


def _import_for_platform() -> None:
    openai_app.import_application()
    import runpod  # noqa: F401  # seconds, which the engine needs anyway


def boot(settings: Settings, plan: EnginePlan, say: Callable[[str], None]) -> Engine:
    """Prepare the process and start the engine. Call once, from the main thread.

    Raises `WorkerError`: where the model cannot be had, and where the engine does not start.
    """
    for warning in (*settings.warnings, *plan.warnings):
        say(f"note: {warning}")
    model = models.locate(plan, say)
    os.environ.update(process_setup.library_environment(settings, os.environ))
    os.environ.pop("VLLM_API_KEY", None)  # it would turn each call in this process into a 401
    lifeline.tie_forked_children()
    say(f"starting the engine with {plan.arguments['model']}")
    started = time.monotonic()
    quiet = not settings.on_platform and settings.process.log_level is None
    meanwhile = _import_for_platform if settings.on_platform else openai_app.import_application
    engine = Engine.boot(plan, model, BootLog(forward=not quiet), meanwhile)
    say(f"engine ready in {time.monotonic() - started:.1f} s")
    return engine
