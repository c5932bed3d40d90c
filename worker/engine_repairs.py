"""Faults of the pinned engine that would take a worker down, mended in its processes.

Each row says what happens without it. Applied by the engine's plugin in every process
that the engine starts, and by the launch, whose forked children inherit it.
"""

import threading
from typing import Any


def apply() -> None:
    """Mend what the platform in force needs; calling it again changes nothing."""
    from vllm.platforms import current_platform

    _register_mlp_speculator()
    if current_platform.is_cpu():
        _take_empty_batches_in_top_k()
        _expand_sampling_values()


def apply_to_ngram() -> None:
    """Compile the n-gram search while the weights load, not during the first job (1.8 s).

    The proposer means to compile it when it is made, but calls it with no request in the
    batch, for which it returns at once. Upstream: `vllm/v1/spec_decode/ngram_proposer.py`.
    The proposer's module imports numba, with which the CPU platform's set-up of kernels
    fails; so it is reached only when the model runner is made, after that set-up.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    make: Any = GPUModelRunner.__init__
    if _is_ours(make):
        return

    def make_runner(self: Any, *args: Any, **kwargs: Any) -> None:
        _compile_in_background()
        make(self, *args, **kwargs)

    GPUModelRunner.__init__ = make_runner


def _compile_in_background() -> None:
    """Have each proposer compile in a thread of its own; its first search waits for that."""
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    make, propose = NgramProposer.__init__, NgramProposer.batch_propose

    def make_proposer(self: Any, *args: Any, **kwargs: Any) -> None:
        self.compiling = None
        make(self, *args, **kwargs)
        self.compiling = threading.Thread(target=_compile, args=(self, propose), daemon=True)
        self.compiling.start()

    def batch_propose(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.compiling is not None:
            self.compiling.join()
            self.compiling = None
        return propose(self, *args, **kwargs)

    NgramProposer.__init__ = make_proposer
    NgramProposer.batch_propose = batch_propose


def _compile(proposer: Any, propose: Any) -> None:
    """One search over one request of two tokens."""
    import numpy as np

    tokens = np.zeros((1, proposer.max_model_len), dtype=np.int32)
    propose(proposer, 1, [0], np.full(1, 2, dtype=np.int32), tokens, proposer.k)


def _register_mlp_speculator() -> None:
    """The engine refuses MLP-speculator heads: their row in its registry is commented out.

    Upstream: `_SPECULATIVE_DECODING_MODELS` in `vllm/model_executor/models/registry.py`.
    """
    from vllm import ModelRegistry

    heads = "worker.mlp_speculator:DraftingHeads"
    ModelRegistry.register_model("MLPSpeculatorPreTrainedModel", heads)


def _is_ours(function: Any) -> bool:
    return getattr(function, "__module__", None) == __name__


def _take_empty_batches_in_top_k() -> None:
    """A request with `top_k` and a temperature, under speculation, ended the CPU engine.

    A step without drafted tokens calls `apply_top_k_only` with no rows, and `max()` of an
    empty tensor raises. Upstream: `vllm/v1/sample/ops/topk_topp_sampler.py`.
    """
    from vllm.v1.sample.ops import topk_topp_sampler

    original: Any = topk_topp_sampler.apply_top_k_only
    if _is_ours(original):
        return

    def apply_top_k_only(logits: Any, k: Any) -> Any:
        return original(logits, k) if logits.shape[0] else logits

    topk_topp_sampler.apply_top_k_only = apply_top_k_only


def _expand_sampling_values() -> None:
    """Under speculation the CPU engine sampled with uninitialised temperature, top-p and top-k.

    `expand_batch_to_tokens` gives each drafted token the values of its request. Its CPU
    kernel fills a copy of the output, cast to int64, and the copy is dropped: what is
    returned is whatever the memory held. Upstream: `_expand_kernel_impl` in
    `vllm/utils/cpu_triton_utils.py`.
    """
    import torch
    from vllm.v1.sample import rejection_sampler

    original: Any = rejection_sampler.expand_batch_to_tokens
    if _is_ours(original):
        return

    def expand_batch_to_tokens(
        x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> Any:
        if replace_from != replace_to:
            x = x.masked_fill(x == replace_from, replace_to)
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        return torch.repeat_interleave(x, counts.long(), output_size=num_tokens)

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
