"""Settings -> the engine's own arguments: only what was set, and a few serverless defaults.

Precedence, from the highest: `VLLM_EXTRA_ARGS`, variables, `VLLM_CONFIG_FILE`, the
defaults below, the engine's own.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from env_schema import FIELD_OF_ARGUMENT, Settings, SpeculationSettings
from worker import (
    argument_rules,
    catalog,
    extra_args,
    redaction,
    speculation,
    speculation_fields,
    speculation_rules,
)
from worker.errors import ConfigurationError, Problem
from worker.grammar import Value

EMBEDDED_MODEL = "SmolLM2-135M-Instruct"
DEFAULT = "default: "  # begins the source of a value that nobody set
EMBEDDED_SOURCE = "embedded model (MODEL_NAME is not set)"

# Arguments of a listening port or of callers' keys, which a queue endpoint does not have.
NO_PORT = "a queue endpoint opens no port"
NOT_ON_A_QUEUE: Mapping[str, str] = {
    **dict.fromkeys(("host", "port", "grpc_port", "uds", "uvicorn_log_level"), NO_PORT),
    **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs"), NO_PORT),
    **dict.fromkeys(("ssl_ciphers", "enable_ssl_refresh", "disable_uvicorn_access_log"), NO_PORT),
    **dict.fromkeys(("h11_max_incomplete_event_size", "h11_max_header_count"), NO_PORT),
    **dict.fromkeys(("disable_access_log_for_endpoints", "data_parallel_supervisor_port"), NO_PORT),
    "api_key": "the platform authenticates callers before a job reaches the worker",
}


METRICS = "per_request_spec_decode_metrics"
REPORT = "speculative_report"  # of what the worker shows; not in the engine's config


@dataclass(frozen=True)
class Default:
    """A value that serverless needs where the user set none."""

    argument: str
    value: Value
    applies: Callable[[Mapping[str, Value]], bool]
    reason: str


DEFAULTS = (
    Default(
        "enforce_eager",
        True,
        lambda _: catalog.is_cpu_build(),
        "compiling for a CPU takes minutes",
    ),
    Default(
        "kv_cache_memory_bytes",
        2**30,
        lambda arguments: catalog.is_cpu_build() and "gpu_memory_utilization" not in arguments,
        "the engine's own choice takes nine tenths of a machine's memory",
    ),
    Default(
        METRICS,
        "summary",
        lambda arguments: bool(arguments.get("speculative_config")),
        "a job may ask for its acceptance figures",
    ),
)


@dataclass(frozen=True)
class EnginePlan:
    """The engine's arguments, by name; where each came from; what to tell the user.

    `typical_acceptance` holds the threshold and the alpha of the worker's own acceptance
    rule, None for the engine's. `count_is_default` says that nobody set the number of
    tokens to draft, so that a draft's own may take its place.
    """

    arguments: Mapping[str, Value] = field(repr=False)  # may hold keys
    sources: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    typical_acceptance: Mapping[str, float] | None = None
    count_is_default: bool = False

    @property
    def is_embedded(self) -> bool:
        """Whether the model is the one that the worker prepares itself."""
        return self.sources.get("model") == EMBEDDED_SOURCE

    @property
    def speculative_config(self) -> Mapping[str, Any] | None:
        """The engine's speculative config, or None where speculation is off."""
        config = self.arguments.get("speculative_config")
        return config if isinstance(config, dict) else None


def plan(settings: Settings) -> EnginePlan:
    """The engine's arguments for these settings.

    Reads `VLLM_CONFIG_FILE`. Raises `ConfigurationError` with every problem.
    """
    made, problems = attempt(settings)
    if problems:
        raise ConfigurationError(problems)
    return made


def attempt(settings: Settings) -> tuple[EnginePlan, list[Problem]]:
    """As `plan`, with the problems beside the plan that can be made without their cause."""
    problems: list[Problem] = []
    process = settings.process
    file = _layer(extra_args.read_file, process.vllm_config_file, problems)
    variables = dict(_from_variables(settings))
    extra = _layer(extra_args.parse_command_line, process.vllm_extra_args, problems)
    arguments: dict[str, Value] = {**file, **variables, **extra}
    sources = {
        **dict.fromkeys(file, extra_args.FILE),
        **{name: _variable_of(settings, name) for name in variables},
        **dict.fromkeys(extra, extra_args.EXTRA),
    }
    for name in [name for name, value in arguments.items() if value is None]:
        del arguments[name], sources[name]
    warnings = _drop_portless(arguments, sources)
    spoken = _speculation(settings, file, extra, arguments.get("max_num_seqs"))
    _put_speculation(spoken, settings, extra, arguments, sources)
    problems += spoken.problems
    _settle_model(settings, arguments, sources, problems)
    warnings += argument_rules.settle(arguments, sources)
    problems += _across(arguments)
    _add_defaults(arguments, sources)
    notes = (*warnings, *spoken.warnings, *_advice(settings, arguments))
    made = EnginePlan(arguments, sources, notes, spoken.typical, spoken.count_is_default)
    return made, problems


def reports_acceptance(settings: Settings, plan: EnginePlan) -> bool:
    """Whether answers carry acceptance figures where a job does not say.

    SPECULATIVE_REPORT says so; the engine's own argument, where somebody set it, wins.
    """
    by_default = plan.sources.get(METRICS, "").startswith(DEFAULT)
    return settings.speculation.speculative_report is not False or not by_default


def command_line(arguments: Mapping[str, Value]) -> list[str]:
    """The words of the `vllm serve` command that these arguments stand for; secrets masked."""
    known = catalog.load().arguments
    words = ["vllm", "serve", str(arguments["model"])]
    for name, value in arguments.items():
        if name != "model":
            secret = redaction.is_secret(name)
            safe = redaction.MASK if secret else redaction.clean_value(value)
            words += _flag_words(known[name], safe)
    return words


def _flag_words(argument: catalog.Argument, value: Value) -> list[str]:
    flag = argument.flags[0]
    if isinstance(value, bool):
        negative = [word for word in argument.flags if word.startswith("--no-")]
        return [flag] if value else negative[:1]
    if argument.repeatable and isinstance(value, list):
        return [word for item in value for word in _pair(flag, item)]
    if argument.joined and isinstance(value, list):
        return _pair(flag, ",".join(map(str, value)))
    if argument.many and isinstance(value, list) and len(value) > 1:
        return [flag, *map(_word, value)]
    return _pair(flag, value[0] if argument.many and isinstance(value, list) else value)


def _pair(flag: str, value: Value) -> list[str]:
    """A flag and its value; in one word where the value looks like a flag itself."""
    word = _word(value)
    return [f"{flag}={word}"] if word.startswith("-") else [flag, word]


def _word(value: Value) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _layer(
    read: Callable[[str], dict[str, Value]], text: str | None, problems: list[Problem]
) -> dict[str, Value]:
    if text is None:
        return {}
    try:
        return read(text)
    except ConfigurationError as error:
        problems.extend(error.problems)
        return {}


def _from_variables(settings: Settings) -> Iterator[tuple[str, Value]]:
    fields = _fields(settings)
    for argument, name in FIELD_OF_ARGUMENT.items():
        if argument != "hf_token" and fields.get(name) is not None:  # libraries read HF_TOKEN
            yield argument, fields[name]
    yield from settings.engine.items()


def _fields(settings: Settings) -> dict[str, Any]:
    groups = (settings.model, settings.speculation, settings.serving, settings.process)
    return {name: value for group in groups for name, value in group}


def _variable_of(settings: Settings, argument: str) -> str:
    field = FIELD_OF_ARGUMENT.get(argument, argument)
    return settings.sources.get(field, field.upper())


def _drop_portless(arguments: dict[str, Value], sources: dict[str, str]) -> list[str]:
    warnings = []
    for name in sorted(arguments.keys() & NOT_ON_A_QUEUE.keys()):
        warnings.append(f"{name.upper()} has no effect: {NOT_ON_A_QUEUE[name]}")
        del arguments[name], sources[name]
    return warnings


SPECULATIVE_ARGUMENTS = ("speculative_config", "spec_method", "spec_model", "spec_tokens")
# Keys of the engine's speculative config that have a flag of their own.
KEY_OF_FLAG: Mapping[str, str] = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}


ACCEPTANCE = (
    "spec_decoding_acceptance_method",
    "typical_acceptance_sampler_posterior_threshold",
    "typical_acceptance_sampler_posterior_alpha",
)


def _speculation(
    settings: Settings,
    file: Mapping[str, Value],
    extra: Mapping[str, Value],
    max_num_seqs: Value,
) -> speculation.Speculation:
    """The speculative config of all layers: the command line's replaces, the file's yields."""
    fields: dict[str, Any] = {k: value for k, value in settings.speculation if k != REPORT}
    sources = dict(settings.sources)
    if any(name in extra for name in SPECULATIVE_ARGUMENTS):
        # the engine's command line has no word for the worker's own rule
        fields = {name: value for name, value in fields.items() if name in ACCEPTANCE}
        sources = {}
        layer, source = extra, extra_args.EXTRA
    else:
        layer, source = _yielding(file, settings.speculation), extra_args.FILE
    for argument in SPECULATIVE_ARGUMENTS:
        if argument in layer:
            name = FIELD_OF_ARGUMENT[argument]
            fields[name] = layer[argument]
            sources[name] = source
    seqs = max_num_seqs if isinstance(max_num_seqs, int) else None
    return speculation.resolve(fields, sources, seqs)


def _yielding(file: Mapping[str, Value], variables: SpeculationSettings) -> Mapping[str, Value]:
    """The file's speculative arguments without what the variables say anything of."""
    if variables.speculative_config is not None:
        return {}
    said = {name for name, value in variables if value is not None}
    taken = {key for name, key in speculation_fields.KEY_OF_FIELD.items() if name in said}
    if variables.speculative_method or variables.speculative_model:
        taken |= {"method", "model"}
    kept = {name: value for name, value in file.items() if KEY_OF_FLAG.get(name) not in taken}
    base = kept.get("speculative_config")
    if isinstance(base, dict):
        config = {k: value for k, value in base.items() if k.replace("-", "_") not in taken}
        kept["speculative_config"] = config
    return kept


def _put_speculation(
    spoken: speculation.Speculation,
    settings: Settings,
    extra: Mapping[str, Value],
    arguments: dict[str, Value],
    sources: dict[str, str],
) -> None:
    for name in SPECULATIVE_ARGUMENTS:
        arguments.pop(name, None)
        sources.pop(name, None)
    given = settings.sources
    set_here = [name for name, _ in settings.speculation if name in given and name != REPORT]
    replaced = any(name in extra for name in SPECULATIVE_ARGUMENTS)
    if not replaced:
        set_here = [name for name in set_here if name not in {*ACCEPTANCE, *spoken.idle}]
    by_variables = ", ".join(given[name] for name in set_here)
    if replaced and by_variables:
        note = f"{by_variables}: no effect, since {extra_args.EXTRA} sets speculation"
        spoken.warnings.append(note)
    if spoken.config is not None:
        arguments["speculative_config"] = spoken.config
        source = extra_args.EXTRA if replaced else by_variables or extra_args.FILE
        sources["speculative_config"] = source


def _settle_model(
    settings: Settings,
    arguments: dict[str, Value],
    sources: dict[str, str],
    problems: list[Problem],
) -> None:
    if "model" in arguments:
        return
    if settings.on_platform:
        why = "not set, so there is no model to serve"
        fix = "Set it to a Hugging Face repository, for instance Qwen/Qwen2.5-0.5B-Instruct"
        problems.append(Problem("MODEL_NAME", None, why, fix))
        return
    arguments["model"] = EMBEDDED_MODEL
    arguments.setdefault("served_model_name", [EMBEDDED_MODEL])
    sources["model"] = EMBEDDED_SOURCE
    sources.setdefault("served_model_name", EMBEDDED_SOURCE)


def _across(arguments: Mapping[str, Value]) -> Iterator[Problem]:
    """Rules over several arguments that strings alone can tell."""
    yield from argument_rules.problems(arguments)
    config = arguments.get("speculative_config")
    if isinstance(config, dict):
        yield from speculation_rules.problems(arguments, config)


def _add_defaults(arguments: dict[str, Value], sources: dict[str, str]) -> None:
    for default in DEFAULTS:
        if default.argument not in arguments and default.applies(arguments):
            arguments[default.argument] = default.value
            sources[default.argument] = f"{DEFAULT}{default.reason}"


def _advice(settings: Settings, arguments: Mapping[str, Value]) -> Iterator[str]:
    most, at_once = arguments.get("max_num_seqs"), settings.process.max_concurrency
    if isinstance(most, int) and at_once > most:
        yield (
            f"MAX_CONCURRENCY={at_once} is above MAX_NUM_SEQS={most}: jobs wait inside this "
            "worker instead of reaching another one"
        )
    if settings.speculation.speculative_report and arguments.get(METRICS) in (None, "none"):
        why = f"{METRICS.upper()} is none" if METRICS in arguments else "speculation is off"
        yield f"SPECULATIVE_REPORT has no effect: {why}"
    yield from argument_rules.advice(arguments)
    config = arguments.get("speculative_config")
    if isinstance(config, dict):
        yield from speculation_rules.advice(arguments, config)
