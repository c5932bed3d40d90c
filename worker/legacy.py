"""Variables of former times: renamed, translated, or told that they do nothing.

The names are those that the older Runpod vLLM worker documented or read, and those that
once were an argument of vLLM's command line (0.2.7 to 0.31.0). The reasons hold for the
pinned engine, 0.32.0. A name that means something today has no row here.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from worker import rope
from worker.errors import Problem
from worker.grammar import FALSE_WORDS, TRUE_WORDS, flag, is_unset
from worker.legacy_translations import STRUCTURED, count, graph_sizes, guided_backend, task
from worker.legacy_values import LEGACY_VALUES, RENAMED, VARIABLES_WITH_OLD_VALUES, rewritten
from worker.redaction import shown

Translation = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True)
class Legacy:
    """A variable that has no meaning of its own any more.

    `reason` is a clause; `replacement` names what to use instead. `renamed_to` is the
    variable that takes the same value today. `translate` turns the old value into today's
    variables, and raises `ValueError` with a clause where it cannot.
    """

    name: str
    reason: str
    replacement: str | None = None
    renamed_to: str | None = None
    translate: Translation | None = None


def _gone(names: str, reason: str, replacement: str | None = None) -> Iterator[Legacy]:
    return (Legacy(name, reason, replacement) for name in names.split())


def _renamed(name: str, renamed_to: str, reason: str) -> Legacy:
    return Legacy(name, reason, renamed_to, renamed_to=renamed_to)


def _when_true(name: str, variable: str, value: str, reason: str) -> Legacy:
    """A flag that asked for something only where it was true."""

    def translate(text: str) -> Mapping[str, str]:
        return {variable: value} if flag(text) else {}

    return Legacy(name, reason, variable, translate=translate)


def _entry(name: str, variable: str, key: str, parse: Callable[[str], object]) -> Legacy:
    """A variable that is one entry of a JSON object today."""

    def translate(text: str) -> Mapping[str, str]:
        return {variable: json.dumps({key: parse(text)})}

    return Legacy(name, f"it is an entry of {variable} today", variable, translate=translate)


EXECUTOR = "DISTRIBUTED_EXECUTOR_BACKEND"
GROWTH = "DEFAULT_BATCH_SIZE_GROWTH_FACTOR"
CHECKPOINT = "ENABLE_MAMBA_SHARED_PREFIX_CHECKPOINT"
EXCLUDE_TOOLS = "EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE"

EARLY = "early releases of the worker called it so"
UNDOCUMENTED = "the worker's code and its documentation called it differently"
PREFIXED = "the documentation named this prefix for a short time"
BAKING = "early images were built with it"
OF_OTHERS = "other programs call it so, and Hugging Face's libraries do not read it"
NEVER = "the worker never had the feature"
NO_LOG = "requests are logged only where that is asked for"
OVERRIDDEN = "it overrides the model's config, whose own values stay where null stands"
NO_POOL = "the engine has no pool of tokenizers any more"
ONE_STEP = "the engine schedules each step ahead of the last one's output"
SCALES = "the KV cache's scales are read from the checkpoint, and are 1 where it has none"
RECOMPUTED = "preempted requests are computed again instead of swapped out"
LAYOUT = "the engine reads the layout of images from the model's own config"
PROCESSOR = "the processor comes with the model"
ONE_KIND = "the engine takes no adapters with added tokens, long context or biases any more"

_ROWS: tuple[Legacy, ...] = (
    # The worker's own, from 2023 to 2026.
    _renamed("BATCH_SIZE", "DEFAULT_BATCH_SIZE", EARLY),
    _renamed("MIN_BATCH_SIZE", "DEFAULT_MIN_BATCH_SIZE", UNDOCUMENTED),
    _renamed("BATCH_SIZE_GROWTH_FACTOR", GROWTH, UNDOCUMENTED),
    _renamed("CONCURRENCY_MODIFIER", "MAX_CONCURRENCY", EARLY),
    _renamed("MAX_MODEL_LENGTH", "MAX_MODEL_LEN", EARLY),
    _renamed("MODEL_BASE_PATH", "BASE_PATH", EARLY),
    _renamed("MODEL_NAME_OVERRIDE", "MODEL_NAME", "MODEL_NAME takes a folder too"),
    _renamed("NUM_GPU_SHARD", "TENSOR_PARALLEL_SIZE", EARLY),
    _renamed("HUGGING_FACE_HUB_TOKEN", "HF_TOKEN", "Hugging Face's libraries renamed it"),
    _renamed("HUGGINGFACE_TOKEN", "HF_TOKEN", OF_OTHERS),
    _renamed("HUGGINGFACEHUB_API_TOKEN", "HF_TOKEN", OF_OTHERS),
    _renamed("VLLM_MAX_MODEL_LEN", "MAX_MODEL_LEN", PREFIXED),
    _renamed("VLLM_RUNPOD_MAX_MODEL_LEN", "MAX_MODEL_LEN", PREFIXED),
    _renamed("VLLM_RUNPOD_ENFORCE_EAGER", "ENFORCE_EAGER", PREFIXED),
    _renamed("VLLM_RUNPOD_ENABLE_CHUNKED_PREFILL", "ENABLE_CHUNKED_PREFILL", PREFIXED),
    *_gone("VLLM_RUNPOD_NUM_SCHEDULER_STEPS", ONE_STEP, "ASYNC_SCHEDULING"),
    *_gone("VLLM_RUNPOD_TOKENIZER_POOL_SIZE", NO_POOL, "RENDERER_NUM_WORKERS"),
    *_gone("USE_TENSOR_PARALLEL", "the number of GPUs says it", "TENSOR_PARALLEL_SIZE"),
    *_gone("VLLM_CPU_FRACTION VLLM_N_CPUS", "it limited Ray, which one machine does not need"),
    *_gone("ALLOW_OPENAI_FORMAT", "the OpenAI routes are always there"),
    *_gone("STREAMING", "each job says whether it streams", "the job's own stream field"),
    *_gone("USE_FULL_METRICS", "usage always comes with a job's output"),
    *_gone("USE_HF_CHAT_TEMPLATE", "messages always get a template", "CUSTOM_CHAT_TEMPLATE"),
    *_gone("USE_QUANTIZATION", "the checkpoint says how it is quantized", "QUANTIZATION"),
    *_gone("ENABLE_MULTIMODAL", "the model says whether it takes images", "LIMIT_MM_PER_PROMPT"),
    *_gone("MODEL_CACHE_ENABLE", "the platform's model cache is found without it"),
    *_gone("MODE_TO_RUN ENABLE_MODEL_PATCH", "one variant of the handler alone read it"),
    *_gone("VLLM_BASE_URL", "the engine runs inside the worker, at no address"),
    *_gone("VLLM_STARTUP_TIMEOUT", "the engine times its own start", "VLLM_ENGINE_READY_TIMEOUT_S"),
    *_gone("REQUEST_TIMEOUT", "the platform times jobs", "the endpoint's execution timeout"),
    *_gone("TRANSFORMERS_VERSION", "the image pins the version that its engine was tested with"),
    *_gone("TRANSFORMERS_CACHE", "Transformers does not read it any more", "BASE_PATH or HF_HOME"),
    *_gone("HF_HUB_ENABLE_HF_TRANSFER", "downloads use Xet instead", "HF_XET_HIGH_PERFORMANCE"),
    *_gone("DOWNLOAD_7B_MODEL DOWNLOAD_13B_MODEL TESTING_DOWNLOAD", BAKING, "MODEL_NAME"),
    *_gone("TENSORIZE TENSORIZE_MODEL TENSORIZER_NUM_GPUS", NEVER, "LOAD_FORMAT=tensorizer"),
    *_gone("TENSORIZER_URI", NEVER, "LOAD_FORMAT=tensorizer and MODEL_LOADER_EXTRA_CONFIG"),
    *_gone("WASABI_ACCESS_KEY WASABI_SECRET_ACCESS_KEY", BAKING, "LORA_MODULES"),
    *_gone("WASABI_LORA_ADAPTER_PATH", BAKING, "LORA_MODULES"),
    # Logging: only the wish for less is taken over, since prompts are in what is logged.
    _when_true("DISABLE_LOG_REQUESTS", "ENABLE_LOG_REQUESTS", "false", NO_LOG),
    _when_true("DISABLE_LOGGING_REQUEST", "ENABLE_LOG_REQUESTS", "false", NO_LOG),
    # Structured outputs, reasoning, tools.
    Legacy(
        "GUIDED_DECODING_BACKEND",
        f"it is an entry of {STRUCTURED} today",
        STRUCTURED,
        translate=guided_backend,
    ),
    _entry("GUIDED_DECODING_DISABLE_ANY_WHITESPACE", STRUCTURED, "disable_any_whitespace", flag),
    _entry(
        "GUIDED_DECODING_DISABLE_ADDITIONAL_PROPERTIES",
        STRUCTURED,
        "disable_additional_properties",
        flag,
    ),
    *_gone("GUIDED_DECODING_DISABLE_FALLBACK", "a named backend never falls back", STRUCTURED),
    *_gone("ENABLE_REASONING", "naming a parser turns it on", "REASONING_PARSER"),
    Legacy(
        "EXPAND_TOOLS_EVEN_IF_TOOL_CHOICE_NONE",
        "the engine turned the question round",
        EXCLUDE_TOOLS,
        translate=lambda text: {EXCLUDE_TOOLS: "false" if flag(text) else "true"},
    ),
    *_gone("LOGITS_PROCESSOR_PATTERN", "requests cannot name any", "LOGITS_PROCESSORS"),
    # Model and tokenizer.
    Legacy("TASK", "the engine split it in two", "RUNNER and CONVERT", translate=task),
    Legacy("ROPE_SCALING", OVERRIDDEN, "HF_OVERRIDES", translate=rope.scaling),
    Legacy("ROPE_THETA", OVERRIDDEN, "HF_OVERRIDES", translate=rope.theta),
    *_gone("TOKENIZER_POOL_SIZE TOKENIZER_POOL_TYPE", NO_POOL, "RENDERER_NUM_WORKERS"),
    *_gone("TOKENIZER_POOL_EXTRA_CONFIG", NO_POOL, "RENDERER_NUM_WORKERS"),
    *_gone("QUANTIZATION_PARAM_PATH CALCULATE_KV_SCALES", SCALES),
    *_gone("OVERRIDE_ATTENTION_DTYPE", "attention runs in the model's type", "DTYPE"),
    _renamed("OVERRIDE_POOLER_CONFIG", "POOLER_CONFIG", RENAMED),
    # Where and how the engine runs.
    _when_true("WORKER_USE_RAY", EXECUTOR, "ray", "the executor is chosen by its name"),
    *_gone("ENGINE_USE_RAY", "the engine's core runs without Ray, in its own process"),
    *_gone("DEVICE", "the engine's build decides it"),
    *_gone("OVERRIDE_NEURON_CONFIG", "the engine has no Neuron backend any more"),
    _renamed("VLLM_ATTENTION_BACKEND", "ATTENTION_BACKEND", "it is an engine argument today"),
    *_gone("DISABLE_FRONTEND_MULTIPROCESSING", "the engine's core always is its own process"),
    Legacy(
        "CUDA_GRAPH_SIZES",
        RENAMED,
        "CUDAGRAPH_CAPTURE_SIZES or MAX_CUDAGRAPH_CAPTURE_SIZE",
        translate=graph_sizes,
    ),
    *_gone(
        "MAX_SEQ_LEN_TO_CAPTURE MAX_CONTEXT_LEN_TO_CAPTURE",
        "CUDA graphs serve any sequence length and are limited by the tokens in a step",
        "MAX_CUDAGRAPH_CAPTURE_SIZE",
    ),
    *_gone("ENABLE_BF16X3_ROUTER_GEMM", "the engine uses that kernel wherever it applies"),
    # Memory and scheduling.
    *_gone("SWAP_SPACE", RECOMPUTED, "KV_OFFLOADING_SIZE (cache) or CPU_OFFLOAD_GB (weights)"),
    *_gone("PREEMPTION_MODE PREEMPTION_CHECK_PERIOD", RECOMPUTED, "KV_OFFLOADING_SIZE"),
    *_gone("PREEMPTION_CPU_CAPACITY", RECOMPUTED, "KV_OFFLOADING_SIZE"),
    *_gone("USE_V2_BLOCK_MANAGER", "the engine has one block manager"),
    *_gone("NUM_LOOKAHEAD_SLOTS", "it follows from speculation", "NUM_SPECULATIVE_TOKENS"),
    *_gone("NUM_SCHEDULER_STEPS MULTI_STEP_STREAM_OUTPUTS", ONE_STEP, "ASYNC_SCHEDULING"),
    *_gone("DISABLE_ASYNC_OUTPUT_PROC", ONE_STEP, "ASYNC_SCHEDULING"),
    *_gone("SCHEDULER_DELAY_FACTOR", "prompts join running steps", "MAX_NUM_BATCHED_TOKENS"),
    *_gone("MAX_PADDINGS", "batches are not padded any more", "MAX_NUM_BATCHED_TOKENS"),
    *_gone(
        "MAX_NUM_PARTIAL_PREFILLS MAX_LONG_PARTIAL_PREFILLS",
        "the scheduler does not count partial prefills any more",
        "LONG_PREFILL_TOKEN_THRESHOLD",
    ),
    _renamed("ENABLE_MAMBA_FINE_GRAINED_PREFIX_CACHE", CHECKPOINT, RENAMED),
    # Expert load balancing.
    _entry("EPLB_WINDOW_SIZE", "EPLB_CONFIG", "window_size", count),
    _entry("EPLB_STEP_INTERVAL", "EPLB_CONFIG", "step_interval", count),
    _entry("EPLB_LOG_BALANCEDNESS", "EPLB_CONFIG", "log_balancedness", flag),
    _entry("NUM_REDUNDANT_EXPERTS", "EPLB_CONFIG", "num_redundant_experts", count),
    # Adapters.
    *_gone("LORA_EXTRA_VOCAB_SIZE LONG_LORA_SCALING_FACTORS ENABLE_LORA_BIAS", ONE_KIND),
    *_gone("QLORA_ADAPTER_NAME_OR_PATH", "adapters are loaded beside the model", "LORA_MODULES"),
    *_gone("ENABLE_PROMPT_ADAPTER PROMPT_ADAPTERS", "only LoRA is left", "LORA_MODULES"),
    *_gone("MAX_PROMPT_ADAPTERS MAX_PROMPT_ADAPTER_TOKEN", "only LoRA is left", "LORA_MODULES"),
    # Images.
    *_gone("IMAGE_INPUT_TYPE IMAGE_INPUT_SHAPE IMAGE_TOKEN_ID IMAGE_FEATURE_SIZE", LAYOUT),
    *_gone("DISABLE_IMAGE_PROCESSOR IMAGE_PROCESSOR", PROCESSOR, "MM_PROCESSOR_KWARGS"),
    *_gone("IMAGE_PROCESSOR_REVISION", PROCESSOR, "MODEL_REVISION"),
    *_gone(
        "MM_CACHE_PREPROCESSOR", "the cache is on unless its size is 0", "MM_PROCESSOR_CACHE_GB"
    ),
    _when_true(
        "DISABLE_MM_PREPROCESSOR_CACHE", "MM_PROCESSOR_CACHE_GB", "0", "size 0 turns the cache off"
    ),
    _when_true(
        "ENABLE_MULTIMODAL_ENCODER_DATA_PARALLEL",
        "MM_ENCODER_TP_MODE",
        "data",
        "the encoder's parallelism is chosen by its name",
    ),
    _renamed("USE_GPU_FOR_POOLING_SCORE", "ENABLE_FLASH_LATE_INTERACTION", RENAMED),
    # Speculation; the settings that still work are not here.
    _renamed("SPECULATIVE_MODEL_QUANTIZATION", "SPECULATIVE_QUANTIZATION", RENAMED),
    *_gone("SPECULATIVE_DISABLE_MQA_SCORER", "drafted tokens are scored in one way only"),
    *_gone(
        "DISABLE_LOGPROBS_DURING_SPEC_DECODING",
        "log-probabilities are computed for the requests that ask for them",
        "the job's own logprobs field",
    ),
)

LEGACY: Mapping[str, Legacy] = MappingProxyType({row.name: row for row in _ROWS})


@dataclass
class _Reading:
    """What became of an environment so far; `origin` maps a new name to the old one."""

    given: Mapping[str, str]
    use: dict[str, str] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def translate(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str], list[Problem]]:
    """What an environment of former times means today: variables, warnings, problems.

    The variables are to be laid over `environ`: the new names of old variables, and the
    variables whose own value was an old one. A variable whose value is refused is blank
    there, so that nothing complains of it again. HF_OVERRIDES may have gaps, which
    `rope.with_own_rope` fills.
    """
    reading = _Reading({k: v.strip() for k, v in environ.items() if not is_unset(v)})
    for row in LEGACY.values():
        if row.name in reading.given:
            _read_name(row, reading)
    for variable in VARIABLES_WITH_OLD_VALUES:
        _read_value(variable, reading)
    return reading.use, reading.warnings, reading.problems


def _read_name(row: Legacy, reading: _Reading) -> None:
    text = reading.given[row.name]
    try:
        wanted = _wanted(row, text)
        merged = {new: _merged(new, value, reading) for new, value in wanted.items()}
    except ValueError as error:
        fix = f"Use {row.replacement} instead" if row.replacement else "Remove it"
        reading.problems.append(Problem(row.name, shown(row.name, text), str(error), fix))
        return
    added = {new: value for new, value in merged.items() if new not in reading.given}
    reading.use |= added
    reading.origin |= dict.fromkeys(added, row.name)
    reading.warnings.append(_warning(row, wanted))


def _wanted(row: Legacy, text: str) -> Mapping[str, str]:
    if row.renamed_to is not None:
        return {row.renamed_to: text}
    return row.translate(text) if row.translate else {}


def _merged(new: str, value: str, reading: _Reading) -> str:
    """The new variable's text, together with what others have said of it."""
    if new in reading.given:
        if not _says(_parsed(reading.given[new]), _parsed(value)):
            raise ValueError(f"stands for {new}, which is set too and says something else")
        return value
    if new not in reading.use:
        return value
    both = _joined(_parsed(reading.use[new]), _parsed(value))
    if both is None:
        raise ValueError(f"stands for {new}, of which {reading.origin[new]} says something else")
    return json.dumps(both) if isinstance(both, dict) else value


def _warning(row: Legacy, wanted: Mapping[str, str]) -> str:
    if row.renamed_to is not None:
        fate = f"is read as {row.renamed_to}"  # without its value, which may be a secret
    elif wanted:
        fate = "is read as " + " ".join(f"{new}={value}" for new, value in wanted.items())
    else:
        fate = "has no effect"
    advice = f"use {row.replacement} instead" if row.replacement else "remove it"
    return f"{row.name} {fate}: {row.reason}; {advice}"


def _read_value(variable: str, reading: _Reading) -> None:
    text = {**reading.given, **reading.use}.get(variable)
    if text is None:
        return
    source = reading.origin.get(variable, variable)
    row = LEGACY_VALUES.get((variable, text.casefold()))
    if row is not None and row.use is None:
        reading.problems.append(Problem(source, shown(source, text), row.reason, row.fix))
        reading.use[variable] = ""
    for use, reason in rewritten(variable, text, row):
        reading.use[variable] = use
        reading.warnings.append(
            f"{source}={text} is read as {variable}={use}: {reason}; write {variable}={use}"
        )


def _parsed(text: str) -> object:
    """The value that a text stands for: a boolean, JSON, or the text itself."""
    if text.casefold() in TRUE_WORDS | FALSE_WORDS:
        return flag(text)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _says(said: object, wanted: object) -> bool:
    """Whether a value says all that is wanted; None wants nothing in particular."""
    if isinstance(said, Mapping) and isinstance(wanted, Mapping):
        return all(_says(said.get(key), value) for key, value in wanted.items())
    return wanted is None or said == wanted


def _joined(first: object, second: object) -> object | None:
    """Two values in one, or None where they contradict each other.

    Inside an object, an entry of None yields to the other's.
    """
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return second if first == second else None
    both = {**first, **second}
    for key in first.keys() & second.keys():
        one, other = first[key], second[key]
        if one is not None and other is not None:
            both[key] = _joined(one, other)
            if both[key] is None:
                return None
        elif other is None:
            both[key] = one
    return both
