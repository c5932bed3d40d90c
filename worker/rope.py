"""ROPE_SCALING and ROPE_THETA of former times -> the model's `rope_parameters` of today."""

import json
from collections.abc import Mapping

# What Transformers does for a model's own config, and nobody does for an override.
ROPE_TYPES = {"su": "longrope", "mrope": "default"}


def scaling(text: str) -> Mapping[str, str]:
    try:
        given = json.loads(text)
    except json.JSONDecodeError:
        raise ValueError("is not valid JSON") from None
    if not isinstance(given, dict):
        raise ValueError("is not a JSON object")
    if not given:
        return {}
    old_type = given.pop("type", None)
    rope_type = given.pop("rope_type", old_type)
    if not isinstance(rope_type, str):
        raise ValueError("has no rope_type")
    own = {"rope_theta": None, "partial_rotary_factor": None}
    return _rope({**own, **given, "rope_type": ROPE_TYPES.get(rope_type, rope_type)})


def theta(text: str) -> Mapping[str, str]:
    try:
        base = float(text)
    except ValueError:
        raise ValueError("is not a number") from None
    if not 0 <= base < float("inf"):
        raise ValueError("is not a base of rotary angles, which is above 0")
    return _rope({"rope_type": None, "rope_theta": base}) if base else {}


def _rope(parameters: Mapping[str, object]) -> Mapping[str, str]:
    return {"HF_OVERRIDES": json.dumps({"rope_parameters": parameters})}


def has_gaps(overrides: object) -> bool:
    """Whether overrides of a model's config leave a rotary parameter to the model."""
    parameters = overrides.get("rope_parameters") if isinstance(overrides, Mapping) else None
    return isinstance(parameters, Mapping) and None in parameters.values()


def with_own_rope(overrides: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Overrides of the model's config without the gaps that `scaling` and `theta` leave in them.

    The engine puts an overriding `rope_parameters` in place of the model's, whole, whereas
    ROPE_SCALING and ROPE_THETA changed a part: without rope_theta the base falls back to
    10000, without rope_type the engine fails, and a rope_theta beside `rope_parameters` is
    not read (vllm/config/model.py, `_apply_dict_overrides`). So None stands for the
    model's own value, and a rope_type of None for everything of its own that is not given.
    `own` is `rope_parameters` of the model's text config as Transformers 5 loads it.

    Raises `ValueError` for a model with several sets of rotary parameters.
    """
    parameters = overrides.get("rope_parameters")
    if not isinstance(parameters, Mapping) or None not in parameters.values():
        return dict(overrides)
    if any(isinstance(value, Mapping) for value in own.values()):
        raise ValueError("the model has rotary parameters for each kind of layer")
    told = {key: value for key, value in parameters.items() if value is not None}
    whole = "rope_type" not in told
    kept = {key: value for key, value in own.items() if whole or key in parameters}
    return {**overrides, "rope_parameters": {**kept, **told}}
