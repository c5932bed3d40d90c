"""The pinned engine's faults: that they are still there, and that ours mends them."""

import subprocess
import sys
from functools import cache
from textwrap import indent

import pytest

# The faulty functions, with the CPU's kernels in place: in a process of its own.
KERNELS = """
import torch
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.ops import topk_topp_sampler
CpuPlatform.register_triton_kernel_overrides()
ends = torch.tensor([2, 5, 6], dtype=torch.int32)
"""
EXPAND = """
values = torch.tensor([0.5, 0.0, 3.0])
junk = torch.full((6,), 77.0); del junk
print(rejection_sampler.expand_batch_to_tokens(values, ends, 6, 0, 1).tolist())
"""
EXPAND_COUNTS = """
values = torch.tensor([20, 49152, 5], dtype=torch.int32)
print(rejection_sampler.expand_batch_to_tokens(values, ends, 6).tolist())
"""
EMPTY_TOP_K = """
k = torch.zeros(0, dtype=torch.int32)
print(list(topk_topp_sampler.apply_top_k_only(torch.zeros(0, 10), k).shape))
"""
MENDED = "from worker import engine_repairs; engine_repairs.apply(); engine_repairs.apply()\n"

CASES = [
    (EXPAND, "[0.5, 0.5, 1.0, 1.0, 1.0, 3.0]"),
    (EXPAND_COUNTS, "[20, 20, 49152, 49152, 49152, 5]"),
    (EMPTY_TOP_K, "[0, 10]"),
]
NAMES = ["temperatures", "counts", "empty top-k"]
GUARD = "\ntry:\n{}\nexcept Exception as error:\n    print(type(error).__name__)\n"


@cache
def printed(*, mended: bool) -> list[str]:
    """What each case prints, or the error that it ends in; all in one process."""
    guarded = [GUARD.format(indent(case, "    ")) for case, _ in CASES]
    code = (MENDED if mended else "") + KERNELS + "".join(guarded)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-len(CASES) :]


@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_the_engine_still_has_the_fault(number: int) -> None:
    assert printed(mended=False)[number] != CASES[number][1]


@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_it_is_mended(number: int) -> None:
    assert printed(mended=True)[number] == CASES[number][1]
