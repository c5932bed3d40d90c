"""Engine arguments from a command line and from a YAML file."""

import shlex
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker import catalog, engine_args, extra_args
from worker.errors import ConfigurationError

SECRET = "s3cr3t-Value-4711"  # noqa: S105  # a planted one
ARGUMENTS = catalog.load().arguments


def refusal_of_words(text: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        extra_args.parse_command_line(text)
    return str(refused.value)


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    """The engine's own parser."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    made: ArgumentParser = make_arg_parser(FlexibleArgumentParser())
    return made


# ---- a command line, in each of the engine's forms


CONFIG = '{"method": "ngram", "num_speculative_tokens": 3}'

COMMAND_LINES: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("   \n ", {}),
    ("--max-num-seqs 8", {"max_num_seqs": 8}),
    ("--max-num-seqs=8", {"max_num_seqs": 8}),
    ("--max_num_seqs 8", {"max_num_seqs": 8}),
    ("--max_num_seqs=8", {"max_num_seqs": 8}),
    ("-tp 2", {"tensor_parallel_size": 2}),
    ("-tp=2", {"tensor_parallel_size": 2}),
    ("-q awq", {"quantization": "awq"}),
    ("-O3", {"optimization_level": "3"}),
    ("-O 1", {"optimization_level": "1"}),
    ("-O=2", {"optimization_level": "2"}),
    ("--enforce-eager", {"enforce_eager": True}),
    ("--no-enforce-eager", {"enforce_eager": False}),
    ("--no_enforce_eager", {"enforce_eager": False}),
    ("--disable-log-stats", {"disable_log_stats": True}),
    ("--max-model-len auto", {"max_model_len": -1}),
    ("--max-model-len -1", {"max_model_len": -1}),
    ("--max-model-len=-1", {"max_model_len": -1}),
    ("--max-model-len 16k", {"max_model_len": 16000}),
    ("--max-num-batched-tokens 2K", {"max_num_batched_tokens": 2048}),
    ("--device-memory-utilization 0.5", {"gpu_memory_utilization": 0.5}),
    ("--max-num-seqs 3 --max-num-seqs 4", {"max_num_seqs": 4}),
    ("--enforce-eager --no-enforce-eager", {"enforce_eager": False}),
    ("--served-model-name a b", {"served_model_name": ["a", "b"]}),
    ("--served-model-name=a,b", {"served_model_name": ["a,b"]}),
    ("""--served-model-name 'a b' '["c"]'""", {"served_model_name": ["a b", '["c"]']}),
    ("--cudagraph-capture-sizes 1 2 4 --seed 3", {"cudagraph_capture_sizes": [1, 2, 4], "seed": 3}),
    ("--middleware a.b --middleware c.d", {"middleware": ["a.b", "c.d"]}),
    ("--device-ids 0,1", {"device_ids": ["0", "1"]}),
    ("--hf-token --seed 1", {"hf_token": True, "seed": 1}),
    ("--hf-token", {"hf_token": True}),
    ("--hf-token abc", {"hf_token": "abc"}),
    ("--hf-token=abc", {"hf_token": "abc"}),
    ("--api-key a b", {"api_key": ["a", "b"]}),
    ("--dtype bfloat16", {"dtype": "bfloat16"}),
    ("--convert none", {"convert": "none"}),
    (
        f"--speculative-config '{CONFIG}'",
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    ),
    (f"-sc '{CONFIG}'", {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}),
    (
        "--speculative-config.method ngram --speculative_config.num_speculative_tokens=3",
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    ),
    ("-sc.method ngram", {"speculative_config": {"method": "ngram"}}),
    (
        "-sc.method ngram --speculative-config.prompt_lookup_max 4",
        {"speculative_config": {"prompt_lookup_max": 4}},
    ),
    (
        "--hf-overrides.a.b 1 --hf-overrides.a.c x --hf-overrides.d=1k --hf-overrides.e 0.5",
        {"hf_overrides": {"a": {"b": 1, "c": "x"}, "d": 1000, "e": 0.5}},
    ),
    (
        "--hf-overrides.k+ x --hf-overrides.k+=y,z",
        {"hf_overrides": {"k": ["x", "y", "z"]}},
    ),
    ("--hf-overrides.a 1 --hf-overrides.a.b 2", {"hf_overrides": {"a": {"b": 2}}}),
    ("--hf-overrides.a.b 2 --hf-overrides.a 1", {"hf_overrides": {"a": 1}}),
    (
        "--hf-overrides.flag true --hf-overrides.none null",
        {"hf_overrides": {"flag": True, "none": None}},
    ),
    ("--hf-overrides.a=", {"hf_overrides": {"a": ""}}),
    ("--hf-overrides.a --seed", {"hf_overrides": {"a": "--seed"}}),
    ("""--hf-overrides '{"a": 1}' --hf-overrides.b 2""", {"hf_overrides": {"b": 2}}),
    ("""--hf-overrides '{"a": "x.y=z -w"}'""", {"hf_overrides": {"a": "x.y=z -w"}}),
    ("--limit-mm-per-prompt.image 2", {"limit_mm_per_prompt": {"image": 2}}),
    ("--seed -3", {"seed": -3}),
    ("--chat-template '- {a list}'", {"chat_template": "- {a list}"}),
    ("--chat-template '{{ x }}\n-{{ y }}'", {"chat_template": "{{ x }}\n-{{ y }}"}),
    ("--chat-template=--{dashes}", {"chat_template": "--{dashes}"}),
    ("--tokenizer é/漢", {"tokenizer": "é/漢"}),
    (
        "--lora-modules sql=/a law=org/b",
        {"lora_modules": [{"name": "sql", "path": "/a"}, {"name": "law", "path": "org/b"}]},
    ),
    (
        """--lora-modules sql=/a '{"name": "law", "path": "/b", "base_model_name": "m"}'""",
        {
            "lora_modules": [
                {"name": "sql", "path": "/a"},
                {"name": "law", "path": "/b", "base_model_name": "m"},
            ]
        },
    ),
    ("--max-num-seqs 8 \\\n  --enforce-eager", {"max_num_seqs": 8, "enforce_eager": True}),
    ("--quantization None", {"quantization": None}),
    ("--quantization ''", {"quantization": None}),
    ("--speculative-config None", {"speculative_config": None}),
]

# Forms that are taken here and that the engine's own command line refuses.
LENIENT: list[tuple[str, dict[str, Any]]] = [
    ("--enforce-eager=true", {"enforce_eager": True}),
    ("--enforce-eager=off", {"enforce_eager": False}),
    ("--no-enforce-eager=true", {"enforce_eager": False}),
    ("--no-enforce-eager=false", {"enforce_eager": True}),
    ("--dtype BF16", {"dtype": "bfloat16"}),
    ("--convert NONE", {"convert": "none"}),
    ("--max-num-seqs 8.0", {"max_num_seqs": 8}),
    ("--max-num-seqs 8 \\\r\n  --enforce-eager", {"max_num_seqs": 8, "enforce_eager": True}),
    ("--max-num-seqs None", {"max_num_seqs": None}),
    ("--hf-overrides.a.b 1 --seed 1", {"hf_overrides": {"a": {"b": 1}}, "seed": 1}),
    ("--speculative-config \"{'method': 'ngram'}\"", {"speculative_config": {"method": "ngram"}}),
]


@pytest.mark.parametrize(("text", "values"), COMMAND_LINES + LENIENT)
def test_a_command_line_is_read(text: str, values: dict[str, Any]) -> None:
    assert extra_args.parse_command_line(text) == values


@pytest.mark.engine
@pytest.mark.parametrize(("text", "values"), COMMAND_LINES)
def test_the_engines_own_parser_reads_the_same(
    text: str, values: dict[str, Any], parser: ArgumentParser
) -> None:
    from worker import launch

    words = shlex.split(text.replace("\\\n", " "))
    engines, ours = vars(parser.parse_args(words)), vars(launch.namespace(values))
    assert {name: _comparable(engines[name]) for name in values} == {
        name: _comparable(ours[name]) for name in values
    }
    untouched = vars(parser.parse_args([]))
    touched = {name for name in engines if repr(engines[name]) != repr(untouched[name])}
    assert touched <= values.keys()


def _comparable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | list | dict | None) else repr(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("--", "VLLM_EXTRA_ARGS=--: is not a flag of the engine."),
        ("-", "VLLM_EXTRA_ARGS=-: stands alone, without a flag before it."),
        ("org/model", "VLLM_EXTRA_ARGS=org/model: stands alone, without a flag before it."),
        ("—seed", "VLLM_EXTRA_ARGS=—seed: stands alone, without a flag before it."),
        ("--max-mode-len 5 x", "VLLM_EXTRA_ARGS=--max-mode-len: is not a flag of the engine; "
                               "the nearest is --max-model-len."),
        ("--enforce", "VLLM_EXTRA_ARGS=--enforce: is not a flag of the engine; "
                      "the nearest is --enforce-eager."),
        ("--enforce-eager true", "VLLM_EXTRA_ARGS=true: stands alone, without a flag before it."),
        ("--tokenizer", "VLLM_EXTRA_ARGS=--tokenizer: needs a value."),
        ("--tokenizer --enforce-eager", "VLLM_EXTRA_ARGS=--tokenizer: needs a value."),
        ("--served-model-name", "VLLM_EXTRA_ARGS=--served-model-name: needs a value."),
        ("--hf-overrides.x", "VLLM_EXTRA_ARGS=--hf-overrides.x: needs a value."),
        ("--max-num-seqs 0",
         "VLLM_EXTRA_ARGS=--max-num-seqs 0: is below the least legal value, 1."),
        ("--max-num-seqs.x 5", 'VLLM_EXTRA_ARGS=--max-num-seqs {"x": 5}: is not a whole number.'),
        ("--seed 'a\nb'", r"VLLM_EXTRA_ARGS=--seed a\nb: is not a whole number."),
        ("--cudagraph-capture-sizes 1 x",
         "VLLM_EXTRA_ARGS=--cudagraph-capture-sizes 1 x: is not a whole number."),
        ("--lora-modules sql", "VLLM_EXTRA_ARGS=--lora-modules sql: holds an adapter without a "
                               "name or a path; write name=path."),
        ("--chat-template 'unclosed",
         "VLLM_EXTRA_ARGS: cannot be split into words: No closing quotation. Check its quotes."),
        ("--headless", "VLLM_EXTRA_ARGS=--headless: is not for a worker: it starts a process "
                       "without the API that the worker calls."),
        ("--config x.yaml",
         "VLLM_EXTRA_ARGS=--config: is not for a worker: the worker reads VLLM_CONFIG_FILE."),
        ("--help", "VLLM_EXTRA_ARGS=--help: is not for a worker: it starts nothing; see docs/."),
        ("--api_server_count 2", "VLLM_EXTRA_ARGS=--api-server-count: is not for a worker: "
                                 "the worker is the one API process."),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_told_in_a_line(text: str, line: str) -> None:
    assert refusal_of_words(text) == line


def test_all_problems_of_a_command_line_come_together() -> None:
    text = "--seed x --bogus 1 2 stray --dtype float61 --max-num-seqs 4 --tokenizer"
    told = [line.split(":")[0].split("=")[1] for line in refusal_of_words(text).splitlines()]
    assert told == ["--seed x", "--bogus", "--dtype float61", "--tokenizer"]


@pytest.mark.parametrize("deep", ["[" * 50_000, '{"a":' * 3000 + "1" + "}" * 3000])
def test_json_that_is_nested_too_deeply_is_refused_or_left_a_text(deep: str) -> None:
    assert "JSON" in refusal_of_words(f"--hf-overrides '{{{deep}'")
    read = extra_args.parse_command_line(f"--hf-overrides.x '{deep}'")
    assert read == {"hf_overrides": {"x": deep}}


@pytest.mark.parametrize(
    "text",
    [
        f"--hf-token '{SECRET}' --bogus",
        f"--hf-token={SECRET} --seed x",
        f"--hf-token=abc {SECRET}",
        f"--api-key={SECRET} {SECRET}x --seed x",
        f"hf-token={SECRET}",
        f"--hf-tokn {SECRET}",
        f"--api-key '{SECRET}",
        f'--kv-transfer-config \'{{"api_key": "{SECRET}" 1}}\'',
        f"--kv-transfer-config.token {SECRET} --kv-transfer-config.x",
    ],
)
def test_a_key_on_the_command_line_shows_in_no_problem(text: str) -> None:
    assert SECRET not in refusal_of_words(text)


@settings(max_examples=150, deadline=None, database=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "--max-num-seqs",
                "-tp=2",
                "--hf-token",
                "--no-enforce-eager=x",
                "--",
                "-",
                "'",
                '"a"',
                "8",
                "--hf-overrides.a.b+",
                "--hf-overrides.a",
                "={",
                "-O",
                "-Ox",
                "--served-model-name",
                "\\\n",
                "--lora-modules",
                "a=b",
                '{"a":',
                "--lora-modules=",
                "--.x",
                "-.5",
                "--=",
                "--x=",
                "None",
            ]
        )
        | st.text(max_size=8),
        max_size=8,
    )
)
def test_any_command_line_is_read_or_refused(words: list[str]) -> None:
    try:
        values = extra_args.parse_command_line(" ".join(words))
    except ConfigurationError as refused:
        lines = str(refused).splitlines()
    else:
        lines = []
        assert values.keys() <= ARGUMENTS.keys()
    assert all(line.startswith("VLLM_EXTRA_ARGS") for line in lines)


# ---- and back


ROUND_TRIPS: list[dict[str, Any]] = [
    {"max_num_seqs": 8, "enforce_eager": True, "enable_prefix_caching": False},
    {"served_model_name": ["a b", "c,d", '["e"]'], "dtype": "bfloat16"},
    {"served_model_name": ["-looks-like-a-flag"]},
    {"max_model_len": -1, "seed": -3, "gpu_memory_utilization": 0.5, "watermark": 0.25},
    {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_max": 4,
        }
    },
    {"hf_overrides": {"a": {"b": [1, None, True, "x'y\"z\\ é\n"]}}},
    {"chat_template": "{{ x }}\n'quoted' \"twice\" $HOME `ls` é漢"},
    {"chat_template": "--starts-like-{a-flag}"},
    {"lora_modules": [{"name": "a", "path": "/b c"}, {"name": "d", "path": "/e,f"}]},
    {"middleware": ["a.b", "c.d"], "device_ids": ["0", "1"], "cudagraph_capture_sizes": [1, 2]},
    {"allowed_origins": ["*"], "default_chat_template_kwargs": {"thinking": False}},
    {"disable_log_stats": True, "convert": "none", "quantization": "awq"},
    {
        "compilation_config": {"mode": 3},
        "kv_transfer_config": {"kv_role": "kv_both", "kv_connector": "X", "engine_id": "e"},
    },
    {"optimization_level": "3", "kv_cache_memory_bytes": 2**30},
]


@pytest.mark.parametrize("values", ROUND_TRIPS, ids=lambda values: "-".join(values))
def test_the_command_line_of_arguments_is_read_back_as_the_same(values: dict[str, Any]) -> None:
    words = engine_args.command_line({"model": "org/model", **values})
    assert words[:3] == ["vllm", "serve", "org/model"]
    assert extra_args.parse_command_line(shlex.join(words[3:])) == values


@pytest.mark.engine
@pytest.mark.parametrize("values", ROUND_TRIPS, ids=lambda values: "-".join(values))
def test_the_engine_reads_the_command_line_of_arguments_as_the_worker_starts_it(
    values: dict[str, Any], parser: ArgumentParser
) -> None:
    from worker import launch

    words = engine_args.command_line({"model": "org/model", **values})
    engines = vars(parser.parse_args(words[2:]))
    ours = vars(launch.namespace({"model": "org/model", **values}))
    assert engines.pop("model_tag") == ours["model"] == "org/model"
    different = {
        name: (engines[name], ours[name])
        for name in engines
        if name != "model" and _comparable(engines[name]) != _comparable(ours[name])
    }
    assert different == {}


# ---- the YAML file


def read_yaml(folder: Path, text: str) -> dict[str, Any]:
    file = folder / "engine.yaml"
    file.write_text(text, encoding="utf-8")
    return extra_args.read_file(str(file))


def refusal_of_yaml(folder: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read_yaml(folder, text)
    return str(refused.value).replace(str(folder), "")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("# nothing\n", {}),
        ("---\n", {}),
        ("max-num-seqs: 8\nmax_model_len: 16k\n", {"max_num_seqs": 8, "max_model_len": 16000}),
        ("max-num-seqs: '8'", {"max_num_seqs": 8}),
        ("enforce-eager: true\nenable-lora: no\nenable-dbo: 'off'",
         {"enforce_eager": True, "enable_lora": False, "enable_dbo": False}),
        ("hf-token: true", {"hf_token": True}),
        ("hf-token: abc", {"hf_token": "abc"}),
        ("served-model-name: [a, b]", {"served_model_name": ["a", "b"]}),
        ("served-model-name: a, b", {"served_model_name": ["a, b"]}),
        ("served-model-name:\n- a b\n- c", {"served_model_name": ["a b", "c"]}),
        ("device-ids: 0,1", {"device_ids": ["0", "1"]}),
        ("device-ids: [0, 1]", {"device_ids": ["0", "1"]}),
        ("cudagraph-capture-sizes: [1, 2]", {"cudagraph_capture_sizes": [1, 2]}),
        ("cudagraph-capture-sizes: 4", {"cudagraph_capture_sizes": [4]}),
        ("dtype: BF16", {"dtype": "bfloat16"}),
        ("gpu-memory-utilization: .5", {"gpu_memory_utilization": 0.5}),
        ("gpu-memory-utilization: 1e-1", {"gpu_memory_utilization": 0.1}),
        ("revision: 2024-01-01", {"revision": "2024-01-01"}),
        ("revision: 1234567", {"revision": "1234567"}),
        ("chat-template: |\n  {{ x }}\n  {{ y }}\n", {"chat_template": "{{ x }}\n{{ y }}\n"}),
        ("speculative-config:\n  method: ngram\n  num_speculative_tokens: 3\n",
         {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}),
        ("speculative-config: '{\"method\": \"ngram\"}'",
         {"speculative_config": {"method": "ngram"}}),
        ("hf-overrides: {a: {b: [1, null, true]}, 1: x}",
         {"hf_overrides": {"a": {"b": [1, None, True]}, "1": "x"}}),
        ("base: &b {a: 1}\nhf-overrides: *b\n".replace("base", "additional-config"),
         {"additional_config": {"a": 1}, "hf_overrides": {"a": 1}}),
        ("override-generation-config:\n  <<: &d {temperature: 0.5}\n  top_k: 2\n",
         {"override_generation_config": {"temperature": 0.5, "top_k": 2}}),
        ("lora-modules:\n- {name: a, path: /b}\n- c=/d\n",
         {"lora_modules": [{"name": "a", "path": "/b"}, {"name": "c", "path": "/d"}]}),
        ("lora-modules: a=/b", {"lora_modules": [{"name": "a", "path": "/b"}]}),
        ("quantization:\nmax-num-seqs: null\nseed: ~\n", {}),
        ("quantization: 'None'\ntokenizer: ''\nmax-num-seqs: none\n", {}),
        ("tokenizer: é/漢\n", {"tokenizer": "é/漢"}),
        ("max-num-seqs: 8\nmax-num-seqs: 9\n", {"max_num_seqs": 9}),
    ],
)  # fmt: skip
def test_a_yaml_file_is_read(tmp_path: Path, text: str, values: dict[str, Any]) -> None:
    assert read_yaml(tmp_path, text) == values


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- a\n- b\n", "does not hold names with values. Write lines like max-num-seqs: 8."),
        ("just text", "does not hold names with values"),
        ("max-num-seq: 8",
         "its key max-num-seq is not an engine argument; the nearest is max_num_seqs"),
        ("1: 2", "its key 1 is not an engine argument"),
        ("null: 2", "its key None is not an engine argument"),
        ("headless: true", "its key headless is not an engine argument"),
        ("max-num-seqs: 0", "its key max-num-seqs with value 0 is below the least legal value, 1"),
        ("max-num-seqs: [1, 2]", "is not a whole number"),
        ("max-num-seqs: {a: 1}", "is not a whole number"),
        ("max-num-seqs: .inf", "not finite"),
        ("max-num-seqs: true", "is not a whole number"),
        ("seed: 2024-01-01", "is not a whole number"),
        ("enforce-eager: 2", "is neither true nor false"),
        ("tokenizer: {a: b}", "is not a text"),
        ("tokenizer: [a]", "is not a text"),
        ("served-model-name: [{a: b}]", "is not a list's item"),
        ("served-model-name: []", "is a list of nothing"),
        ("hf-overrides: {a: !!binary aGk=}", "holds a bytes"),
        ("hf-overrides: {a: 2024-01-01}", "holds a date"),
        ("hf-overrides: {a: .nan}", "not finite"),
        ("hf-overrides: &a [*a]", "nested too deeply"),
        ("a: [1", "is not valid YAML: "),
        ("a: b: c", "is not valid YAML: mapping values are not allowed here at line 1, column 5"),
        ("seed: 2024-13-45", "is not valid YAML"),
        ("seed: !!int abc", "is not valid YAML"),
        ("seed: !!python/object:os.system x",
         "is not valid YAML: could not determine a constructor"),
        ("? [1]\n: 2\n", "is not valid YAML: found unhashable key"),
        ("a: " + "[" * 3000, "is not valid YAML"),
        ("\x07", "is not valid YAML"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_yaml_file_is_told_in_a_line(
    tmp_path: Path, text: str, why: str
) -> None:
    told = refusal_of_yaml(tmp_path, text)
    assert why in told
    assert told.startswith("VLLM_CONFIG_FILE=/engine.yaml: ")
    assert told.splitlines() == [told]
    assert len(told) < 250


def test_all_problems_of_a_yaml_file_come_together(tmp_path: Path) -> None:
    told = refusal_of_yaml(tmp_path, "seed: x\nbogus: 1\ndtype: float61\nmax-num-seqs: 4\n")
    assert len(told.splitlines()) == 3


@pytest.mark.parametrize(
    "text",
    [
        f"hf-token: '{SECRET}\n",
        f"api-key: {SECRET}: x\n",
        f"api-key: {{a: {SECRET}}}\nseed: x\n",
        f"hf-token: [{SECRET}]\n",
        f"kv-transfer-config: [api_key: {SECRET}]\n",
        f"hf_tokn: {SECRET}\n",
    ],
)
def test_a_key_in_a_yaml_file_shows_in_no_problem(tmp_path: Path, text: str) -> None:
    assert SECRET not in refusal_of_yaml(tmp_path, text)


def test_a_file_that_cannot_be_read_is_told_with_the_cause(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"tokenizer: \xe9\xff\n")
    for path, why in {
        str(tmp_path): "cannot be read: Is a directory. Check the path.",
        "/no/such/file.yaml": "cannot be read: No such file or directory. Check the path.",
        "/" + "x" * 5000: "cannot be read: File name too long. Check the path.",
        "a\x00b": "is not valid YAML",
        str(tmp_path / "latin.yaml"): "is not valid YAML: its text is not UTF-8.",
    }.items():
        with pytest.raises(ConfigurationError) as refused:
            extra_args.read_file(path)
        assert why in str(refused.value)
        assert len(str(refused.value)) < 250


@pytest.mark.engine
@pytest.mark.parametrize(
    "text",
    [
        "max-num-seqs: 8\nenforce-eager: true\nenable-prefix-caching: false\n",
        "served-model-name: [a, b c]\ndtype: bfloat16\n",
        "speculative-config: {method: ngram, num_speculative_tokens: 3}\n",
        "compilation-config:\n  mode: 3\ngpu-memory-utilization: 0.5\n",
        "tokenizer: org/tok\nrevision: 2024-01-01\nmax-model-len: 16k\n",
    ],
)
def test_the_engine_reads_a_yaml_file_as_the_worker_does(
    tmp_path: Path, text: str, parser: ArgumentParser
) -> None:
    from worker import launch

    values = read_yaml(tmp_path, text)
    engines = vars(parser.parse_args(["--config", str(tmp_path / "engine.yaml")]))
    ours = vars(launch.namespace(values))
    assert {name: _comparable(engines[name]) for name in values} == {
        name: _comparable(ours[name]) for name in values
    }
