"""Arguments by name -> the engine's own config, on the tiny model; nothing is started."""

from pathlib import Path

import pytest

import env_schema
from worker import engine_args


def rope_parameters(model: Path, **variables: str) -> dict[str, object]:
    """What the engine's config says of a model's rotary embedding."""
    from worker import launch

    environ = {"MODEL_NAME": str(model), "DTYPE": "float32", **variables}
    plan = engine_args.plan(env_schema.load(environ))
    config = launch.engine_config(launch.namespace(plan.arguments))
    return dict(config.model_config.hf_text_config.rope_parameters)


def test_an_old_rope_variable_changes_one_value_and_keeps_the_models_others(
    tiny_model: Path,
) -> None:
    own = rope_parameters(tiny_model)
    assert rope_parameters(tiny_model, ROPE_THETA="20000") == {**own, "rope_theta": 20000.0}


@pytest.mark.parametrize("text", ["auto", "-1", "0", ""])
def test_an_automatic_context_length_is_taken(tiny_model: Path, text: str) -> None:
    from worker import launch

    environ = {"MODEL_NAME": str(tiny_model), "MAX_MODEL_LEN": text}
    plan = engine_args.plan(env_schema.load(environ))
    config = launch.engine_config(launch.namespace(plan.arguments))
    assert config.model_config.max_model_len == 2048
