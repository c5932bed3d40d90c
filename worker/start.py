"""From an environment to a running engine, in the order that costs least.

Nothing heavy is imported before the configuration is known to be good.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable

from env_schema import Settings
from worker import (
    lifeline,
    models,
    openai_app,
    process_setup,
    redaction,
    speculation_log,
    typical_acceptance,
)
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


def _cleaned(say: Callable[[str], None], settings: Settings) -> Callable[[str], None]:
    return lambda line: say(redaction.clean(line, settings.secrets))


def _import_for_platform() -> None:
    openai_app.import_application()
    import runpod  # noqa: F401  # seconds, which the engine needs anyway


def boot(settings: Settings, plan: EnginePlan, say: Callable[[str], None]) -> Engine:
    """Prepare the process and start the engine. Call once, from the main thread.

    Raises `WorkerError`: where the model cannot be had, and where the engine does not start.
    """
    tell = _cleaned(say, settings)
    for warning in (*settings.warnings, *plan.warnings):
        tell(f"note: {warning}")
    model = models.locate(plan, tell)
    if settings.model.hf_token is None:
        os.environ.pop("HF_TOKEN", None)  # a form's None would be sent to the Hub as a token
    os.environ.update(process_setup.library_environment(settings, os.environ))
    if os.environ.pop("VLLM_API_KEY", None):  # it would turn each call in this process into a 401
        tell("note: VLLM_API_KEY has no effect: the platform authenticates callers")
    if plan.typical_acceptance is not None:
        os.environ[typical_acceptance.VARIABLE] = json.dumps(dict(plan.typical_acceptance))
    lifeline.tie_forked_children()
    tell(f"starting the engine with {plan.arguments['model']}")
    started = time.monotonic()
    quiet = not settings.on_platform and settings.process.log_level is None
    meanwhile = _import_for_platform if settings.on_platform else openai_app.import_application
    engine = Engine.boot(
        plan, model, BootLog(forward=not quiet, secrets=settings.secrets), meanwhile, tell
    )
    tell(f"engine ready in {time.monotonic() - started:.1f} s")
    for line in speculation_log.at_boot(engine.client.vllm_config, plan):
        tell(line)
    return engine
