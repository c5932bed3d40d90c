"""SPECULATIVE_DISABLE_BY_BATCH_SIZE and the whole schedule, on the real engine."""

from pathlib import Path

import pytest
from engine_run import Answer, run_engine
from worker_under_test import NGRAM

pytestmark = pytest.mark.engine

REQUEST = {
    "prompt": "one two three four five six seven eight " * 6,
    "sampling_params": {"max_tokens": 40, "temperature": 0, "ignore_eos": True},
}


def drafted(answers: list[Answer]) -> list[int]:
    """Tokens drafted for each request."""
    return [(answer.metrics or {})["num_draft_tokens"] for answer in answers]


@pytest.mark.parametrize(
    "schedule",
    [
        {"SPECULATIVE_DISABLE_BY_BATCH_SIZE": "2"},
        {"SPECULATIVE_TOKENS_PER_BATCH_SIZE": "1-2:3,3-:0"},
    ],
    ids=["cut-off", "schedule"],
)
def test_nothing_is_drafted_above_the_cut_off_and_the_answer_stays(
    embedded: Path, schedule: dict[str, str]
) -> None:
    alone, four = run_engine(embedded, {**NGRAM, **schedule}, [[REQUEST], [REQUEST] * 4])
    assert drafted(alone)[0] >= 15
    # the four come and go together, but for a step at either end
    assert max(drafted(four)) <= 6
    assert {tuple(answer.token_ids) for answer in four} == {tuple(alone[0].token_ids)}
