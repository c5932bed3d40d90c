"""Rules between the speculative config and the engine's other arguments; no file is read."""

from collections.abc import Iterator, Mapping

from worker.errors import Problem
from worker.grammar import Value
from worker.speculation import SCHEDULE, WITHOUT_DRAFT

HIGH_UTILISATION = 0.93  # above it a draft's weights and cache rarely fit (fault F024)
LEAST_STEPS = 4  # a context shorter than this many full drafts is a mistake in one of the two

Arguments = Mapping[str, Value]


def problems(arguments: Arguments, config: Mapping[str, Value]) -> Iterator[Problem]:
    """What the engine would refuse late, or drop in silence."""
    if "model" in config:
        yield from _draft_sizes(arguments, config)
    yield from _count(arguments, config)
    yield from _adapters(arguments, config)
    if arguments.get("logits_processors"):
        why = "the engine runs no logits processors of yours under speculation"
        fix = "Unset it, or switch speculation off"
        yield Problem("LOGITS_PROCESSORS", str(arguments["logits_processors"]), why, fix)
    ranks = arguments.get("data_parallel_size", 1)
    if SCHEDULE in config and isinstance(ranks, int) and ranks > 1:
        why = "the engine drops a schedule of tokens per batch size under data parallelism"
        fix = "Unset it, or the cut-off (SPECULATIVE_DISABLE_BY_BATCH_SIZE) and the schedule"
        yield Problem("DATA_PARALLEL_SIZE", str(ranks), why, fix)


def _draft_sizes(arguments: Arguments, config: Mapping[str, Value]) -> Iterator[Problem]:
    gpus, drafts = (
        arguments.get("tensor_parallel_size", 1),
        config.get("draft_tensor_parallel_size"),
    )
    if drafts not in (None, 1, gpus):
        why = f"is neither 1 nor the target's own TENSOR_PARALLEL_SIZE={gpus}"
        yield Problem("SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE", str(drafts), why)
    elif config.get("method") == "draft_model" and drafts not in (None, gpus):
        why = f"a draft model runs on as many GPUs as the target, TENSOR_PARALLEL_SIZE={gpus}"
        yield Problem("SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE", str(drafts), why, "Unset it")
    longest, drafted = arguments.get("max_model_len"), config.get("max_model_len")
    if isinstance(longest, int) and isinstance(drafted, int) and 0 < longest < drafted:
        why = f"is above the target's own MAX_MODEL_LEN={longest}"
        yield Problem("SPECULATIVE_MAX_MODEL_LEN", str(drafted), why)


def _count(arguments: Arguments, config: Mapping[str, Value]) -> Iterator[Problem]:
    longest, tokens = arguments.get("max_model_len"), config.get("num_speculative_tokens")
    if isinstance(longest, int) and isinstance(tokens, int) and 0 < longest < tokens * LEAST_STEPS:
        why = f"is more than a quarter of the context, MAX_MODEL_LEN={longest}"
        yield Problem("NUM_SPECULATIVE_TOKENS", str(tokens), why, "Set it to 3 to 5")


def _adapters(arguments: Arguments, config: Mapping[str, Value]) -> Iterator[Problem]:
    if not (arguments.get("enable_lora") or arguments.get("lora_modules")):
        return
    if config.get("enable_adaptive_verification"):
        why = "the engine does not verify adaptively with adapters"
        yield Problem("SPECULATIVE_ENABLE_ADAPTIVE_VERIFICATION", "true", why, "Unset it")
    batch, seqs = arguments.get("max_num_batched_tokens"), arguments.get("max_num_seqs")
    tokens = config.get("num_speculative_tokens")
    if not (isinstance(batch, int) and isinstance(seqs, int) and isinstance(tokens, int)):
        return
    if batch < seqs * (tokens + 1):
        why = (
            f"is below MAX_NUM_SEQS={seqs} times {tokens + 1} (the drafted tokens and one), "
            "which adapters need"
        )
        fix = f"Set it to {seqs * (tokens + 1)} or more, or lower NUM_SPECULATIVE_TOKENS"
        yield Problem("MAX_NUM_BATCHED_TOKENS", str(batch), why, fix)


def advice(arguments: Arguments, config: Mapping[str, Value]) -> Iterator[str]:
    """What is allowed and rarely meant."""
    used = arguments.get("gpu_memory_utilization")
    drafts_with_weights = config.get("method") not in WITHOUT_DRAFT and "model" in config
    if isinstance(used, float) and used >= HIGH_UTILISATION and drafts_with_weights:
        yield (
            f"GPU_MEMORY_UTILIZATION={used:g} leaves little room beside a draft's weights and "
            "cache; if the engine runs out of memory, lower it, MAX_MODEL_LEN or MAX_NUM_SEQS"
        )
