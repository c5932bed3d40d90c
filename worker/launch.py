"""Arguments by name -> the engine's own Namespace, config and client.

Each value goes through the type of its own parser action, so that the engine sees what
its command line would have given it. Importing this module imports the engine: seconds.
"""

import json
import os
from argparse import Action, ArgumentTypeError, Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import (
    make_arg_parser,
    propagate_flash_late_interaction,
    validate_parsed_serve_args,
)
from vllm.entrypoints.launchers.launcher import validate_api_server_args
from vllm.platforms import current_platform
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

from worker import catalog, engine_plugin, engine_repairs, rope
from worker.engine_errors import one_sentence
from worker.grammar import Value

# What the user asked for: the CPU platform writes `spawn` over it, even where nobody did.
START_METHOD = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "fork")

MLP_SPECULATOR = "mlp_speculator"  # the method that the engine knows and cannot draft with


def namespace(arguments: Mapping[str, Value]) -> Namespace:
    """The Namespace of the engine's parser with these values, and its defaults for the rest."""
    parser = make_arg_parser(FlexibleArgumentParser())
    actions = {action.dest: action for action in parser._actions}
    spoken: Namespace = parser.parse_args([])
    for name, value in arguments.items():
        setattr(spoken, name, _checked(actions[name], value))
    _check_front_end(spoken)
    return spoken


def _checked(action: Action, value: Value) -> Any:
    try:
        return _typed(action, value)
    except (ArgumentTypeError, ValueError, TypeError) as error:
        raise ValueError(f"{action.dest.upper()}: {one_sentence(error)}") from None


def _check_front_end(spoken: Namespace) -> None:
    """What the engine's own server does before it starts: plug-ins, and its checks.

    Source: `setup_server` and `build_async_engine_client` of
    `vllm.entrypoints.launchers`.
    """
    if spoken.tool_parser_plugin:
        ToolParserManager.import_tool_parser(spoken.tool_parser_plugin)
    if spoken.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(spoken.reasoning_parser_plugin)
    validate_parsed_serve_args(spoken)
    if spoken.reasoning_parser:
        spoken.structured_outputs_config.reasoning_parser = spoken.reasoning_parser
    validate_api_server_args(spoken)


def _typed(action: Action, value: Value) -> Any:
    argument = catalog.load().arguments[action.dest]
    if isinstance(value, bool) or value is None:
        return value
    if argument.kind == "lora_modules" and isinstance(value, list):
        return _lora_modules(action, value)
    if argument.kind == "list" and isinstance(value, list):
        if argument.joined:
            return _convert(action, ",".join(map(str, value)))
        return [_convert(action, str(item)) for item in value]
    if isinstance(value, dict | list):
        return _convert(action, json.dumps(value))
    return _convert(action, str(value))


def _convert(action: Action, text: str) -> Any:
    return action.type(text) if callable(action.type) else text


def _lora_modules(action: Action, value: list[Value]) -> Any:
    """The engine's own action turns adapters, as JSON texts, into its objects."""
    parser, spoken = FlexibleArgumentParser(), Namespace()
    action(parser, spoken, [json.dumps(adapter) for adapter in value])
    return getattr(spoken, action.dest)


def engine_config(spoken: Namespace) -> VllmConfig:
    """The engine's config; its own checks raise here, before any weight is loaded (0.1 s)."""
    engine_plugin.register()  # where the package is not installed, nobody else calls it
    args = AsyncEngineArgs.from_cli_args(spoken)
    propagate_flash_late_interaction(spoken, args)
    if rope.has_gaps(args.hf_overrides):
        args.hf_overrides = _with_own_rope(args)
    config = args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    if config.speculative_config is not None and config.speculative_config.method == MLP_SPECULATOR:
        from worker import mlp_speculator

        mlp_speculator.take_seat(config)
    return config


def _with_own_rope(args: AsyncEngineArgs) -> dict[str, Any]:
    """The overrides, with the model's own rotary parameters where they leave a gap."""
    own = replace(args, hf_overrides={}).create_model_config()
    return rope.with_own_rope(args.hf_overrides, own.hf_text_config.rope_parameters or {})


def start(spoken: Namespace, config: VllmConfig) -> AsyncLLM:
    """The engine's client, with its children started and ready. Blocks; seconds to minutes.

    Raises `RuntimeError` where a child failed; the cause is only in the child's output.
    """
    if config.speculative_config is not None and config.speculative_config.method == "ngram":
        engine_repairs.apply_to_ngram()
    if current_platform.is_cpu():
        # The platform has just written `spawn`. Forked children need no import of their
        # own: 19 s instead of 45 s to the first token. Nothing has started threads yet.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = START_METHOD
    return AsyncLLM.from_vllm_config(
        vllm_config=config,
        usage_context=UsageContext.OPENAI_API_SERVER,
        enable_log_requests=spoken.enable_log_requests,
        aggregate_engine_logging=spoken.aggregate_engine_logging,
        disable_log_stats=spoken.disable_log_stats,
    )
