"""The catalogue: complete, and read as the engine itself reads it."""

import json
import subprocess
import sys
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import Any, get_args

import pytest

from worker import catalog, catalog_generator
from worker.catalog import Argument

ROOT = Path(__file__).parents[1]
ARGUMENTS = catalog.load().arguments

# Texts for each kind of argument; the first is what a user would write.
SAMPLES: dict[str, tuple[str, ...]] = {
    "flag": ("true", "False", "on", "0"),
    "flag_or_text": ("some-token",),
    "integer": ("7", "1_0", "8.0"),
    "human_integer": ("4096", "16k", "2K", "25.6k", "1M"),
    "human_integer_or_auto": ("4096", "auto", "AUTO", "-1", "16k"),
    "number": ("0.5", "5e-1"),
    "text": ("some-text", "é 漢", "a=b, c"),
    "json": ("{}", "'{}'"),
    "json_list": ('["GET", "POST"]', "['*']"),
    "json_or_text": ("plain", '{"key": [1, 2.5, "x", null, true]}'),
    "list": ("first second", '["first"]', "first,second"),
    "lora_modules": ("sql=/adapters/sql", '{"name": "a", "path": "/b", "base_model_name": "c"}'),
}
# Arguments whose type takes less than their kind says, and objects worth more than {}.
SAMPLES_OF: dict[str, tuple[str, ...]] = {
    "compilation_config": ('{"mode": 3, "cudagraph_capture_sizes": [1, 2]}', "{'mode': 0}"),
    "structured_outputs_config": ('{"backend": "xgrammar"}',),
    "speculative_config": ('{"method": "ngram", "num_speculative_tokens": 3}',),
    "limit_mm_per_prompt": ('{"image": 2, "video": {"count": 1}}',),
    "kv_transfer_config": ('{"kv_connector": "X", "kv_role": "kv_both", "engine_id": "e"}',),
    "ec_transfer_config": ('{"engine_id": "e"}',),
    "override_generation_config": ('{"temperature": 0.5}',),
    "device_ids": ("0,1", "[0, 1]", "GPU-1f2e GPU-3d4c"),
    "cudagraph_capture_sizes": ("1 2 4", "[1, 2]"),
    "numa_bind_nodes": ("0 1",),
    "quantization": ("awq", "fp8"),
    "optimization_level": ("3",),
}


def samples(argument: Argument) -> tuple[str, ...]:
    """Texts that the argument takes."""
    if argument.name in SAMPLES_OF:
        return SAMPLES_OF[argument.name]
    if argument.choices:
        return tuple(str(choice).upper() for choice in argument.choices)
    if argument.item == "integer":
        return ("1 2", "[3]")
    return SAMPLES[argument.kind]


def engine_words(argument: Argument, value: Any) -> list[str]:
    """The value as words after the argument's flag on the engine's command line."""
    if argument.joined:
        return [",".join(value)]
    values = value if argument.kind in ("list", "lora_modules") else [value]
    return [item if isinstance(item, str) else json.dumps(item) for item in values]


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    """The engine's own parser (importing it takes seconds, building it half of one)."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    made: ArgumentParser = make_arg_parser(FlexibleArgumentParser())
    return made


@pytest.fixture(scope="module")
def actions(parser: ArgumentParser) -> dict[str, Action]:
    """The actions of the engine's parser, by name."""
    return {action.dest: action for action in parser._actions}


@pytest.mark.engine
def test_the_catalogue_is_that_of_the_installed_engine() -> None:
    generated = json.loads(catalog_generator.generate_in_child())
    differences = list(_differences(json.loads(catalog.PATH.read_text()), generated))
    assert not differences, "run `python -m worker docs`:\n" + "\n".join(differences)


def _differences(stored: dict[str, Any], generated: dict[str, Any]) -> Iterator[str]:
    if stored["engine_version"] != generated["engine_version"]:
        yield f"engine {stored['engine_version']} -> {generated['engine_version']}"
    old, new = (
        {entry["name"]: entry for entry in side["arguments"]} for side in (stored, generated)
    )
    yield from (f"gone: {name}" for name in sorted(old.keys() - new.keys()))
    yield from (f"new: {name}" for name in sorted(new.keys() - old.keys()))
    for name in sorted(old.keys() & new.keys()):
        for key in sorted(old[name].keys() | new[name].keys()):
            if old[name].get(key) != new[name].get(key):
                yield f"changed: {name}.{key}: {old[name].get(key)!r} -> {new[name].get(key)!r}"
    before, after = (set(side["engine_environment"]) for side in (stored, generated))
    yield from (f"gone variable: {name}" for name in sorted(before - after))
    yield from (f"new variable: {name}" for name in sorted(after - before))
    for part in ("registered", "config_keys"):
        for name in sorted({*stored[part], *generated[part]}):
            old_names, new_names = (set(side[part].get(name, ())) for side in (stored, generated))
            yield from (f"gone from {name}: {word}" for word in sorted(old_names - new_names))
            yield from (f"new in {name}: {word}" for word in sorted(new_names - old_names))


def test_a_difference_is_told_by_name_in_both_directions() -> None:
    kept, gone, new = ({"name": name, "kind": "text"} for name in ("kept", "gone", "new"))
    stored: dict[str, Any] = {
        "engine_version": "1",
        "arguments": [kept, gone],
        "engine_environment": ["A"],
        "registered": {"load_format": ["auto", "pt"]},
        "config_keys": {"x_config": ["a"]},
    }
    generated = {
        "engine_version": "2",
        "arguments": [{**kept, "kind": "flag"}, new],
        "engine_environment": ["B"],
        "registered": {"load_format": ["auto", "hf"]},
        "config_keys": {"x_config": ["a"], "y_config": ["b"]},
    }
    assert list(_differences(stored, generated)) == [
        "engine 1 -> 2",
        "gone: gone",
        "new: new",
        "changed: kept.kind: 'text' -> 'flag'",
        "gone variable: A",
        "new variable: B",
        "gone from load_format: pt",
        "new in load_format: hf",
        "new in y_config: b",
    ]


@pytest.mark.parametrize("argument", ARGUMENTS.values(), ids=ARGUMENTS)
def test_each_entry_has_the_types_that_the_code_counts_on(argument: Argument) -> None:
    assert argument.side in get_args(catalog.Side)
    assert argument.kind in get_args(catalog.Kind)
    assert argument.flags[0] == "--" + argument.name.replace("_", "-")
    assert all(flag.startswith("-") for flag in argument.flags)
    assert argument.variable == argument.name.upper()
    for bound in (argument.minimum, argument.above, argument.maximum, argument.below):
        assert bound is None or isinstance(bound, int | float)
    assert bool(argument.choices) >= (argument.kind == "choice")


def test_the_catalogue_has_no_other_keys_than_the_code_reads() -> None:
    stored = json.loads(catalog.PATH.read_text())
    known = {field.name for field in fields(Argument)}
    assert {key for entry in stored["arguments"] for key in entry} <= known
    assert len(stored["arguments"]) == len(ARGUMENTS)


@pytest.mark.engine
def test_every_argument_of_the_engine_is_there_and_no_other(actions: dict[str, Action]) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    assert ARGUMENTS.keys() == actions.keys() - catalog_generator.NOT_ARGUMENTS
    of_engine = {field.name for field in fields(AsyncEngineArgs)}
    for name, argument in ARGUMENTS.items():
        assert (argument.side == "engine") == (name in of_engine), name


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore:--log-config-file is deprecated")
@pytest.mark.parametrize("argument", ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_text_becomes_what_the_engines_own_action_makes_of_it(
    argument: Argument, through_our_side: dict[tuple[str, str], Any], parser: ArgumentParser
) -> None:
    for text in samples(argument):
        ours = through_our_side[argument.name, text]
        assert _alike(ours, _through_the_engines_command_line(parser, argument, text)), text


@pytest.fixture(scope="module")
def through_our_side(parser: ArgumentParser) -> dict[tuple[str, str], Any]:
    """What each sample is in the Namespace that the worker starts the engine with."""
    from worker import launch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "make_arg_parser", lambda _: parser)  # build it once, not 40 times
        patch.setattr(launch, "_check_front_end", lambda _: None)  # samples are one by one
        return dict(_spoken(launch.namespace))


def _spoken(namespace: Callable[..., Namespace]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Samples in rounds, one for each argument: a Namespace holds them all."""
    for texts in zip_longest(*map(samples, ARGUMENTS.values())):
        taken = {
            name: text for name, text in zip(ARGUMENTS, texts, strict=True) if text is not None
        }
        spoken = namespace({name: ARGUMENTS[name].parse(text) for name, text in taken.items()})
        yield from (((name, text), getattr(spoken, name)) for name, text in taken.items())


def _through_the_engines_command_line(parser: ArgumentParser, argument: Argument, text: str) -> Any:
    value = argument.parse(text)
    if argument.kind == "flag":
        positive, *others = argument.flags
        negative = [flag for flag in others if flag.startswith("--no-")]
        words = [positive] if value else negative
    elif argument.repeatable:
        words = [
            word for item in engine_words(argument, value) for word in (argument.flags[0], item)
        ]
    else:
        words = [argument.flags[0], *engine_words(argument, value)]
    return getattr(parser.parse_args(words), argument.name)


def _alike(ours: Any, engines: Any) -> bool:
    """Equal in value and in type; some of the engine's objects have no equality."""
    return type(ours) is type(engines) and (ours == engines or repr(ours) == repr(engines))


@pytest.mark.engine
@pytest.mark.parametrize("name", [name for name, argument in ARGUMENTS.items() if argument.choices])
def test_a_word_that_is_no_choice_is_refused_here_as_there(
    name: str, actions: dict[str, Action]
) -> None:
    with pytest.raises(ValueError, match="accepted"):
        ARGUMENTS[name].parse("certainly-no-choice")
    assert "certainly-no-choice" not in (actions[name].choices or ())


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("max_num_seqs", "0", "below the least legal value, 1"),
        ("max_model_len", "-2", "below the least legal value, -1"),
        ("max_model_len", "0", "is zero; write a length, or auto"),
        ("block_size", "0", "must be above 0"),
        ("gpu_memory_utilization", "0", "must be above 0"),
        ("gpu_memory_utilization", "1.5", "above the greatest legal value, 1"),
        ("data_parallel_rpc_port", "70000", "above the greatest legal value, 65535"),
        ("video_pruning_rate", "1", "must be below 1"),
        ("cpu_offload_gb", "-1", "below the least legal value, 0"),
        ("dtype", "float61", "did you mean float16"),
        ("max_lora_rank", "7", "accepted: 1, 8, 16"),
        ("enable_lora", "perhaps", "neither true nor false"),
        ("speculative_config", "[]", "is not a JSON object"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_the_bound(name: str, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ARGUMENTS[name].parse(text)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("gpu_memory_utilization", "1", 1.0),
        ("max_model_len", "auto", -1),
        ("max_logprobs", "-1", -1),
        ("cpu_offload_gb", "0", 0.0),
        ("dtype", "BF16", "bfloat16"),
        ("max_lora_rank", "64", 64),
    ],
)
def test_a_value_on_a_bound_is_taken(name: str, text: str, value: object) -> None:
    assert ARGUMENTS[name].parse(text) == value


def test_words_after_a_flag_are_items_whatever_is_in_them() -> None:
    assert ARGUMENTS["served_model_name"].parse_items(["a, b", "c"]) == ["a, b", "c"]
    assert ARGUMENTS["cudagraph_capture_sizes"].parse_items(["1", "2"]) == [1, 2]


@pytest.mark.parametrize(
    ("name", "text", "unset"),
    [
        ("quantization", "None", True),
        ("quantization", "", True),
        ("mamba_cache_mode", "none", False),
        ("mamba_cache_mode", "NONE", False),
        ("mamba_cache_mode", "null", True),
        ("quantization", "awq", False),
    ],
)
def test_a_choice_called_none_is_a_value_on_a_command_line(
    name: str, text: str, unset: bool
) -> None:
    assert ARGUMENTS[name].is_unset(text) is unset


def test_reading_the_catalogue_imports_no_engine() -> None:
    code = "import sys; from worker import catalog; catalog.load(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"vllm", "torch", "pydantic"} & set(done.stdout.split())
