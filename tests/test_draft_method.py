"""A draft's method is read from its config; where the engine would end elsewhere, it is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from worker import draft_method, preflight
from worker.errors import ConfigurationError

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100}

CONFIGS = [
    (LLAMA, "draft_model"),
    ({}, "draft_model"),
    ({"model_type": "medusa"}, "medusa"),
    ({"medusa_num_heads": 4, "base_model_name_or_path": "x"}, "medusa"),
    ({"model_type": "mlp_speculator", "n_predict": 3}, "mlp_speculator"),
    ({"architectures": ["MLPSpeculatorPreTrainedModel"]}, "mlp_speculator"),
    ({"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
    ({"model_type": "llama", "architectures": ["Eagle3LlamaForCausalLM"]}, "eagle3"),
    ({**LLAMA, "draft_vocab_size": 50}, "eagle3"),
    ({"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
    ({"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"]}, "eagle3"),
    ({"speculators_model_type": "dflash"}, "dflash"),
    ({"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"}, "dspark"),
    ({"model_type": "qwen3_next_mtp"}, "mtp"),
    ({"model_type": "mtp"}, "mtp"),
]


@pytest.mark.parametrize(("config", "method"), CONFIGS, ids=str)
def test_the_config_says_the_method(config: dict[str, Any], method: str) -> None:
    assert draft_method.of_config(config) == method


@pytest.mark.parametrize(
    ("name", "asked", "config", "says"),
    [
        ("org/legaleagle-1b", None, LLAMA, "the engine takes it for eagle"),
        ("org/my-eagle3-draft", "draft_model", LLAMA, "the engine takes it for eagle3"),
        ("org/dflash-like", "medusa", LLAMA, "the engine takes it for dflash"),
        ("org/head", "eagle", {"architectures": ["LlamaForCausalLMEagle3"]}, "the eagle3 method"),
        ("org/head", "draft_model", {"model_type": "medusa"}, "the medusa method"),
    ],
)
def test_another_end_than_asked_for_is_refused(
    name: str, asked: str | None, config: dict[str, Any], says: str
) -> None:
    _, problem = draft_method.choose(name, config, asked)
    assert problem is not None
    assert says in problem.why
    assert "SPECULATIVE_METHOD" in problem.fix


@pytest.mark.parametrize(
    ("name", "asked", "config", "method"),
    [
        ("org/small", None, LLAMA, "draft_model"),
        ("org/legaleagle-1b", "eagle", LLAMA, "eagle"),  # an old head looks like a plain model
        ("org/medusa-1b", None, LLAMA, "draft_model"),
        ("org/old-heads", "medusa", {}, "medusa"),
        ("org/EAGLE3-x", None, {"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
    ],
)
def test_a_draft_that_is_what_it_says_is_taken(
    name: str, asked: str | None, config: dict[str, Any], method: str
) -> None:
    assert draft_method.choose(name, config, asked) == (method, None)


def folders(tmp_path: Path, draft: dict[str, Any]) -> dict[str, str]:
    for name, config in (("target", LLAMA), ("draft", draft)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return {
        "MODEL_NAME": str(tmp_path / "target"),
        "SPECULATIVE_MODEL": str(tmp_path / "draft"),
    }


def test_the_plan_names_the_method_and_the_heads_own_count(tmp_path: Path) -> None:
    environ = folders(tmp_path, {"model_type": "mlp_speculator", "n_predict": 4})
    _, plan, _ = preflight.examine(environ)
    assert plan.speculative_config is not None
    assert plan.speculative_config["method"] == "mlp_speculator"
    assert plan.speculative_config["num_speculative_tokens"] == 4
    _, plan, _ = preflight.examine({**environ, "NUM_SPECULATIVE_TOKENS": "2"})
    assert (plan.speculative_config or {})["num_speculative_tokens"] == 2


def test_two_vocabularies_are_told_with_the_way_out(tmp_path: Path) -> None:
    environ = folders(tmp_path, {**LLAMA, "vocab_size": 90})
    with pytest.raises(ConfigurationError, match=r"90 tokens and the target's 100.*HETEROGENEOUS"):
        preflight.examine(environ)
    preflight.examine({**environ, "SPECULATIVE_USE_HETEROGENEOUS_VOCAB": "true"})


def test_a_draft_used_beyond_its_context_is_refused(tmp_path: Path) -> None:
    environ = folders(tmp_path, {**LLAMA, "max_position_embeddings": 64})
    with pytest.raises(ConfigurationError, match="the draft's own context of 64 tokens"):
        preflight.examine({**environ, "SPECULATIVE_MAX_MODEL_LEN": "128"})
