"""Where a model's files are: the embedded model, a folder, or a Hugging Face repository."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from worker import embedded_model
from worker.engine_args import EnginePlan
from worker.grammar import Value

# Arguments that may name a file or a folder on this machine.
PATHS = ("model", "tokenizer", "chat_template", "hf_config_path", "generation_config",
         "download_dir", "tool_parser_plugin", "reasoning_parser_plugin")  # fmt: skip


def locate(plan: EnginePlan, say: Callable[[str], None]) -> str:
    """What the engine is told to load: a folder, or a repository's id.

    The embedded model is prepared where that is still to be done; `say` gets a line for
    each step. Raises `WorkerError` where it cannot be prepared.
    """
    if plan.is_embedded:
        return str(embedded_model.prepare(say))
    return str(plan.arguments["model"])


def with_absolute_paths(plan: EnginePlan) -> EnginePlan:
    """The plan with paths that hold in any working directory: the worker changes its own."""
    arguments = {
        name: _absolute(value) if name in PATHS else value for name, value in plan.arguments.items()
    }
    speculative = arguments.get("speculative_config")
    if isinstance(speculative, dict) and "model" in speculative:
        speculative = {**speculative, "model": _absolute(speculative["model"])}
        arguments["speculative_config"] = speculative
    if isinstance(adapters := arguments.get("lora_modules"), list):
        arguments["lora_modules"] = [_with_absolute_path(adapter) for adapter in adapters]
    return replace(plan, arguments=arguments)


def _with_absolute_path(adapter: Value) -> Value:
    if isinstance(adapter, dict) and "path" in adapter:
        return {**adapter, "path": _absolute(adapter["path"])}
    return adapter


def _absolute(value: Value) -> Value:
    if not isinstance(value, str) or "\n" in value or len(value) > 1000:
        return value
    path = Path(value).expanduser()
    return str(path.absolute()) if path.exists() else value
