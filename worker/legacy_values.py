"""Values that a variable of today took once: what to write now, or why it is refused.

The values are those of vLLM 0.2.7 to 0.31.0; the reasons hold for the pinned engine.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

RENAMED = "the engine renamed it"


@dataclass(frozen=True)
class LegacyValue:
    """A value that a variable of today took once, in lower case.

    `use` is the value that means the same today; where there is none, the value is
    refused, and `fix` says what to do.
    """

    variable: str
    value: str
    reason: str
    fix: str = ""
    use: str | None = None


@dataclass(frozen=True)
class LegacyForm:
    """A way of writing a value that a variable of today took once.

    `rewrite` returns the value as it is written today, or None where the text is not in
    the old form.
    """

    variable: str
    reason: str
    rewrite: Callable[[str], str | None]


def _refused(variable: str, values: str, reason: str, fix: str) -> Iterator[LegacyValue]:
    return (LegacyValue(variable, value, reason, fix) for value in values.split())


def _today(variable: str, value: str, use: str, reason: str) -> LegacyValue:
    return LegacyValue(variable, value, reason, use=use)


DROPPED = "names what the engine has dropped"
PLUG_IN = "needs the plug-in vllm-gguf-plugin, which does not come with the engine"
QUANTIZED = "Serve an AWQ, GPTQ or FP8 checkpoint, or set QUANTIZATION=fp8_per_tensor"
ANY_BACKEND = "Unset it: the engine picks a backend that serves the model"
NO_SUFFIX = "the engine's backends have no generations any more"
OWN_KERNELS = "the method picks its kernels for a CPU itself"
HASH = "PREFIX_CACHING_HASH_ALGO"
BITS = "QUANTIZATION"
MORI = "Set ALL2ALL_BACKEND=mori_high_throughput or mori_low_latency"

_DROPPED_METHODS = (
    "aqlm bitsandbytes deepspeedfp gptq_marlin_24 hqq neuron_quant qqq rtn sparseml squeezellm "
    "tpu_int8"
)
_DROPPED_BACKENDS = (
    "block_sparse_flash_attn differential_flash_attn dual_chunk_flash_attn hpu_attn ipex openvino "
    "pallas pallas_vllm_v1 rocm_flash torch_sdpa_vllm_v1 tree_attn xformers xformers_vllm_v1"
)
_GENERATIONS = "CUTLASS_MLA FLASHINFER FLASHMLA FLASH_ATTN ROCM_AITER_MLA TRITON_ATTN TRITON_MLA"

VALUE_ROWS: tuple[LegacyValue, ...] = (
    *_refused(BITS, _DROPPED_METHODS, DROPPED, QUANTIZED),
    *_refused(BITS, "gguf", PLUG_IN, QUANTIZED),
    *_refused(BITS, "ptpc_fp8", DROPPED, "Set QUANTIZATION=fp8_per_channel"),
    # Kernels for a checkpoint of another method, which the checkpoint names itself.
    *_refused(BITS, "bitblas gptq_bitblas ipex petit_nvfp4", DROPPED, "Unset it"),
    _today(BITS, "auto-round", "inc", "Intel's Neural Compressor includes AutoRound"),
    _today(BITS, "cpu_awq", "awq", OWN_KERNELS),
    _today(BITS, "cpu_gptq", "gptq", OWN_KERNELS),
    _today(BITS, "nvfp4", "modelopt_fp4", RENAMED),
    *_refused("LOAD_FORMAT", "bitsandbytes", DROPPED, QUANTIZED),
    *_refused("LOAD_FORMAT", "gguf", PLUG_IN, QUANTIZED),
    _today("TOKENIZER_MODE", "slow", "hf", "Transformers has one tokenizer for each model"),
    *_refused("TOKENIZER_MODE", "custom", DROPPED, "Name the mode that your plug-in registers"),
    *_refused("TOKENIZER_MODE", "fastokens", DROPPED, "Set VLLM_USE_FASTOKENS=1 instead"),
    *_refused("ATTENTION_BACKEND", _DROPPED_BACKENDS, DROPPED, ANY_BACKEND),
    *(
        _today("ATTENTION_BACKEND", f"{name}_vllm_v1".lower(), name, NO_SUFFIX)
        for name in _GENERATIONS.split()
    ),
    *_refused("LORA_DTYPE", "float32", DROPPED, "Set LORA_DTYPE=auto, bfloat16 or float16"),
    *_refused("CONVERT", "reward", DROPPED, "Set RUNNER=pooling and unset CONVERT"),
    *_refused("CONVERT", "mm_encoder_only", DROPPED, "Set MM_ENCODER_ONLY=true instead"),
    _today(HASH, "builtin", "sha256", "Python's own hash could collide"),
    _today(HASH, "sha256_cbor_64bit", "sha256_cbor", RENAMED),
    _today("MAMBA_CACHE_MODE", "all", "align", "it is the one mode left that caches prefixes"),
    *_refused("ALL2ALL_BACKEND", "mori", "is two backends today", MORI),
    # MiniMax-M1's, a model that the engine has dropped.
    *_refused("TOOL_CALL_PARSER", "minimax", DROPPED, "Set minimax_m2 or minimax_m3"),
)

LEGACY_VALUES: Mapping[tuple[str, str], LegacyValue] = MappingProxyType(
    {(row.variable, row.value): row for row in VALUE_ROWS}
)


def _limits_per_modality(text: str) -> str | None:
    """`image=2,video=1` as JSON."""
    if not re.fullmatch(r"\w+=\d+(\s*,\s*\w+=\d+)*", text):
        return None
    return json.dumps({name: int(limit) for name, limit in re.findall(r"(\w+)=(\d+)", text)})


def _compilation_mode(text: str) -> str | None:
    """A level of compilation, 0 to 3, as JSON."""
    return json.dumps({"mode": int(text)}) if text in {"0", "1", "2", "3"} else None


LEGACY_FORMS: tuple[LegacyForm, ...] = (
    LegacyForm("LIMIT_MM_PER_PROMPT", "the engine takes JSON only", _limits_per_modality),
    LegacyForm("COMPILATION_CONFIG", "a level is one entry of the config", _compilation_mode),
)

VARIABLES_WITH_OLD_VALUES = tuple(
    sorted({row.variable for row in VALUE_ROWS} | {form.variable for form in LEGACY_FORMS})
)


def rewritten(variable: str, text: str, row: LegacyValue | None) -> Iterator[tuple[str, str]]:
    """How a value is written today, with the reason, where it was written otherwise once."""
    if row is not None and row.use is not None:
        yield row.use, row.reason
    for form in LEGACY_FORMS:
        if form.variable == variable and (use := form.rewrite(text)) is not None:
            yield use, form.reason
