"""Writes `catalog.json` from the installed engine: its parser's actions and its bounds.

Runs as its own process, since the engine reads its help texts only where `--help` is on
the command line when it is imported: `python -m worker.catalog_generator --help`.
Source: `vllm.entrypoints.launchers.cli_args.make_arg_parser` for names, types and
choices; the pydantic metadata of `vllm.config` classes for bounds.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from worker import catalog

# Parser-only names: neither the engine nor its front end reads them as an argument.
NOT_ARGUMENTS = frozenset({"help", "model_tag", "headless", "api_server_count", "config", "grpc"})

# Bounds that the engine applies in code instead of in a type, or fails without (0.32.0).
CODED_MINIMUM: dict[str, float] = {
    "max_model_len": -1,
    "num_gpu_blocks_override": 1,
    "kv_cache_memory_bytes": 1,  # the CPU worker takes 0 for a cache of nothing
    "renderer_num_workers": 1,  # the size of a pool of threads
    "max_cpu_loras": 1,  # not below max_loras
    "cp_kv_cache_interleave_size": 1,  # divides the block size
    "distributed_timeout_seconds": 1,
    "cpu_distributed_timeout_seconds": 1,
}

NUMERIC = ("integer", "human_integer", "human_integer_or_auto", "number")

# Dests whose parser type is a private lambda.
LAMBDA_KINDS: dict[str, dict[str, object]] = {"device_ids": {"kind": "list", "joined": True}}


def generate() -> str:
    """The text of `catalog.json` for the installed engine."""
    from vllm import envs
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    new_parser: Any = FlexibleArgumentParser  # untyped
    parser = make_arg_parser(new_parser())
    engine_fields = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    bounds = dict(_bounds())
    arguments = [
        _describe(action, action.dest in engine_fields, bounds.get(action.dest, {}))
        for action in parser._actions
        if action.dest not in NOT_ARGUMENTS
    ]
    content = {
        "engine_version": import_module("vllm.version").__version__.partition("+")[0],
        "arguments": arguments,
        "engine_environment": sorted(envs.environment_variables),
        "registered": {name: sorted(names) for name, names in _registered()},
        "config_keys": {name: sorted(keys) for name, keys in _config_keys(parser._actions)},
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _registered() -> Iterator[tuple[str, Iterable[str]]]:
    """The names that the engine looks an argument's value up among, after its import."""
    from vllm.model_executor import model_loader
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager
    from vllm.transformers_utils.chat_templates.registry import CHAT_TEMPLATES_DIR

    yield "quantization", QUANTIZATION_METHODS
    yield "load_format", model_loader._LOAD_FORMAT_TO_MODEL_LOADER
    yield "tool_call_parser", ToolParserManager.list_registered()
    yield "reasoning_parser", ReasoningParserManager.list_registered()
    yield "chat_template", [file.name for file in CHAT_TEMPLATES_DIR.glob("*.jinja")]


def _config_keys(actions: Iterable[argparse.Action]) -> Iterator[tuple[str, Iterable[str]]]:
    """The keys of each argument that the parser makes one of the engine's config classes of."""
    for action in actions:
        kind = _unwrapped(action.type)
        if getattr(kind, "__name__", "") == "parse_dataclass":
            (config,) = kind.__defaults__
            if getattr(config, "__pydantic_config__", {}).get("extra") != "forbid":
                continue
            yield action.dest, [field.name for field in dataclasses.fields(config) if field.init]


def generate_in_child() -> str:
    """The text of `catalog.json`, made in a process of its own (about ten seconds).

    Raises `subprocess.CalledProcessError` where the engine is not installed.
    """
    command = [sys.executable, "-m", "worker.catalog_generator", "--help"]
    environment = {**os.environ, "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        command, env=environment, cwd=catalog.PATH.parents[1], capture_output=True, check=True
    )
    text = done.stdout.decode()
    return text[text.index("{") :]


def _bounds() -> Iterator[tuple[str, dict[str, float]]]:
    """Field name and bounds, for each bounded field of the engine's config classes."""
    import vllm.config
    from pydantic.fields import FieldInfo

    words = {"ge": "minimum", "gt": "above", "le": "maximum", "lt": "below"}
    skipped = {"SpeculativeConfig", "DiffusionConfig", "WatermarkConfig"}  # reached by JSON only
    for name in dir(vllm.config):
        config = getattr(vllm.config, name)
        if name in skipped or not dataclasses.is_dataclass(config):
            continue
        for field in dataclasses.fields(config):
            if not isinstance(field.default, FieldInfo):
                continue
            found = {
                word: getattr(mark, attribute)
                for mark in field.default.metadata
                for attribute, word in words.items()
                if getattr(mark, attribute, None) is not None
            }
            if found:
                yield field.name, found
    yield from ((name, {"minimum": least}) for name, least in CODED_MINIMUM.items())


def _describe(
    action: argparse.Action, of_engine: bool, bounds: dict[str, float]
) -> dict[str, object]:
    kind = _kind(action)
    entry: dict[str, object] = {
        "name": action.dest,
        "side": "engine" if of_engine else "frontend",
        "flags": _named_first(action),
        "summary": _first_sentence(action.help),
        **kind,
    }
    choices = [option for option in action.choices or () if option is not None]
    if choices:
        entry["choices"] = choices
    return entry | (bounds if kind["kind"] in NUMERIC else {})


def _named_first(action: argparse.Action) -> list[str]:
    named = "--" + action.dest.replace("_", "-")
    return sorted(action.option_strings, key=lambda flag: flag != named)


def _kind(action: argparse.Action) -> dict[str, object]:
    if action.dest in LAMBDA_KINDS:
        return LAMBDA_KINDS[action.dest]
    if action.dest == "lora_modules":
        return {"kind": "lora_modules"}
    if isinstance(action, argparse.BooleanOptionalAction | argparse._StoreTrueAction):
        return {"kind": "flag"}
    item = _scalar_kind(_unwrapped(action.type))
    if isinstance(action, argparse._AppendAction):
        return {"kind": "list", "repeatable": True}
    if action.nargs == "+":
        return {"kind": "list", "item": "integer"} if item == "integer" else {"kind": "list"}
    if action.nargs == "?":
        return {"kind": "flag_or_text"}
    if item == "json" and isinstance(action.default, list):
        return {"kind": "json_list"}
    return {"kind": "choice" if action.choices else item}


def _unwrapped(kind: Any) -> Any:
    """The type inside the engine's `optional_type` and `parse_type` wrappers."""
    while getattr(kind, "__name__", "") in ("_optional_type", "_parse_type"):
        kind = kind.__closure__[0].cell_contents
    return kind


def _scalar_kind(kind: Any) -> str:
    name = getattr(kind, "__name__", "")
    return {
        "int": "integer",
        "float": "number",
        "human_readable_int": "human_integer",
        "human_readable_int_or_auto": "human_integer_or_auto",
        "loads": "json",
        "parse_dataclass": "json",
        "union_dict_and_str": "json_or_text",
    }.get(name, "text")


def _first_sentence(help_text: str | None) -> str:
    text = " ".join((help_text or "").strip().split("\n\n")[0].split()).replace("%%", "%")
    if text.startswith(("API docs:", "Should either be")):
        return ""
    return text if len(text) <= 200 else text[:199].rstrip() + "…"


if __name__ == "__main__":
    sys.stdout.write(generate())
