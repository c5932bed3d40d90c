"""What is set outside stays outside of every test."""

import os
from collections.abc import Iterator

import pytest

OUTSIDE = ("MODEL_NAME", "NUM_GPU_SHARD", "VLLM_LOGGING_LEVEL", "RUNPOD_ENDPOINT_ID")


@pytest.fixture(scope="module")
def _outside() -> Iterator[None]:
    """Variables that are there before a test's own fixtures are."""
    with pytest.MonkeyPatch.context() as patch:
        for name in OUTSIDE:
            patch.setenv(name, "from outside")
        yield


@pytest.mark.usefixtures("_outside")
@pytest.mark.parametrize("name", OUTSIDE)
def test_no_variable_reaches_a_test_from_outside(name: str) -> None:
    assert name not in os.environ
