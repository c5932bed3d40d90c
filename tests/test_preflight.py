"""What the models' own files on this machine tell before anything is loaded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import env_schema
from worker import embedded_model, engine_args, preflight
from worker.errors import ConfigurationError
from worker.preflight import Findings

LLAMA = {"model_type": "llama", "max_position_embeddings": 2048, "vocab_size": 512}
PLATFORM = {"RUNPOD_WEBHOOK_GET_JOB": "https://api.runpod.ai/v2/x/job-take/y"}


def write_config(folder: Path, content: Mapping[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder)


def cache(hub: Path, repository: str, content: Mapping[str, Any], revision: str = "main") -> None:
    """A repository as the Hub's own client keeps it."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    commit = f"0123456789abcdef-{revision}"
    write_config(folder / "snapshots" / commit, content)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / revision).write_text(commit)


def inspect(environ: Mapping[str, str]) -> Findings:
    plan = engine_args.plan(env_schema.load(environ))
    return preflight.inspect(plan, environ)


def problems(environ: Mapping[str, str]) -> list[str]:
    return [str(problem) for problem in inspect(environ).problems]


# ---- where the files are


@pytest.fixture
def _unprepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where the embedded model is not prepared."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))


@pytest.mark.usefixtures("_unprepared")
def test_the_embedded_model_of_itself_is_good() -> None:
    assert inspect({}) == Findings()


@pytest.mark.parametrize("prepared", [False, True])
def test_the_embedded_models_own_context_is_the_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if prepared:
        write_config(embedded_model.path(), {**LLAMA, "max_position_embeddings": 8192})
    assert problems({"MAX_MODEL_LEN": "8192"}) == []
    (line,) = problems({"MAX_MODEL_LEN": "100000"})
    assert "the model's own context of 8192 tokens" in line


@pytest.mark.usefixtures("_unprepared")
def test_a_draft_for_the_embedded_model_is_read_like_any_other(tmp_path: Path) -> None:
    (line,) = problems({"SPECULATIVE_MODEL": "/does/not/exist"})
    assert line.startswith("SPECULATIVE_MODEL=/does/not/exist: is a path")
    (unchecked,) = inspect({"SPECULATIVE_MODEL": "org/draft", "HF_HOME": str(tmp_path)}).unchecked
    assert unchecked.startswith("SPECULATIVE_MODEL=org/draft")
    (line,) = problems({"SPECULATIVE_MODEL": write_config(tmp_path / "draft", LLAMA)})
    assert "its vocabulary has 512 tokens and the target's 49152" in line


# ---- names that no model can have

NO_NAMES = [
    ('"a/b"', "Remove the quotes"),
    ("'a/b'", "Remove the quotes"),
    ("org/my model", "neither a folder nor a name"),
    ("https://huggingface.co/org/model", "is an address"),
    ("org/\udcff", "neither a folder nor a name"),
    ("org/a/b", "neither a folder nor a name"),
]


@pytest.mark.parametrize("variable", ["MODEL_NAME", "SPECULATIVE_MODEL", "TOKENIZER_NAME"])
@pytest.mark.parametrize(("name", "why"), NO_NAMES)
def test_a_name_that_nothing_can_have_is_refused(variable: str, name: str, why: str) -> None:
    (line,) = problems({"MODEL_NAME": "org/model", "HF_HOME": "/nowhere", variable: name})
    assert line.startswith(f"{variable}=")
    assert why in line


@pytest.mark.parametrize("name", ["gpt2", "org/model", "org/Model-1.5_b", "pkg.module.Proposer"])
@pytest.mark.parametrize("variable", ["MODEL_NAME", "SPECULATIVE_MODEL", "TOKENIZER_NAME"])
def test_a_name_that_a_repository_can_have_is_taken(variable: str, name: str) -> None:
    assert problems({"MODEL_NAME": "org/model", "HF_HOME": "/nowhere", variable: name}) == []


@pytest.mark.parametrize("name", ["s3://bucket/model", "gs://bucket/a/b", "az://bucket/model"])
def test_a_remote_path_is_taken_where_the_engine_streams_it(name: str) -> None:
    environ = {"MODEL_NAME": name, "HF_HOME": "/nowhere"}
    assert problems(environ) == []
    assert problems({**environ, "LOAD_FORMAT": "runai_streamer"}) == []
    (line,) = problems({**environ, "LOAD_FORMAT": "safetensors"})
    assert "needs LOAD_FORMAT=runai_streamer" in line


def test_a_custom_class_is_named_by_its_import_path() -> None:
    environ = {"MODEL_NAME": "org/model", "HF_HOME": "/nowhere"}
    custom = {"SPECULATIVE_METHOD": "custom_class", "SPECULATIVE_MODEL": "pkg.module.Proposer"}
    assert problems({**environ, **custom}) == []


@pytest.mark.parametrize("variable", ["MODEL_NAME", "SPECULATIVE_MODEL"])
def test_a_folder_without_a_model_is_refused(tmp_path: Path, variable: str) -> None:
    environ = {"MODEL_NAME": "org/model", "HF_HOME": "/nowhere", variable: str(tmp_path)}
    (line,) = problems(environ)
    assert "is a folder without config.json or params.json" in line
    (tmp_path / "params.json").touch()
    assert problems(environ) == []


def test_a_folder_is_read(tmp_path: Path) -> None:
    model = write_config(tmp_path / "model", LLAMA)
    assert inspect({"MODEL_NAME": model, "MAX_MODEL_LEN": "2048"}) == Findings()
    assert problems({"MODEL_NAME": model, "MAX_MODEL_LEN": "2049"}) == [
        "MAX_MODEL_LEN=2049: is above the model's own context of 2048 tokens. "
        "Set it to 2048 or less, or unset it."
    ]


def test_a_folder_beside_the_working_directory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path / "models" / "mine", LLAMA)
    monkeypatch.chdir(tmp_path)
    for name in ("models/mine", "./models/mine"):
        assert len(problems({"MODEL_NAME": name, "MAX_MODEL_LEN": "4096"})) == 1


@pytest.mark.parametrize("place", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_a_cached_repository_is_read_from_each_place_of_the_cache(
    tmp_path: Path, place: str
) -> None:
    below = {
        "HF_HUB_CACHE": "",
        "HF_HOME": "hub",
        "XDG_CACHE_HOME": "huggingface/hub",
        "HOME": ".cache/huggingface/hub",
    }
    cache(tmp_path / below[place], "org/model", LLAMA)
    environ = {"MODEL_NAME": "org/model", "MAX_MODEL_LEN": "4096", place: str(tmp_path)}
    assert len(problems(environ)) == 1
    assert len(problems({**environ, "HF_HOME": environ.get("HF_HOME", " ")})) == 1


def test_the_revision_that_is_served_is_the_one_that_is_read(tmp_path: Path) -> None:
    cache(tmp_path, "org/model", LLAMA)
    cache(tmp_path, "org/model", {**LLAMA, "max_position_embeddings": 8192}, "long")
    environ = {"MODEL_NAME": "org/model", "MAX_MODEL_LEN": "4096", "HF_HUB_CACHE": str(tmp_path)}
    assert len(problems(environ)) == 1
    assert problems({**environ, "MODEL_REVISION": "long"}) == []
    assert problems({**environ, "MODEL_REVISION": "0123456789abcdef-long"}) == []
    unread = inspect({**environ, "MODEL_REVISION": "other"})
    assert (unread.problems, len(unread.unchecked)) == ([], 1)


def test_what_is_not_on_this_machine_is_told_as_not_checked(tmp_path: Path) -> None:
    findings = inspect(
        {"MODEL_NAME": "org/model", "SPECULATIVE_MODEL": "org/draft", "HF_HOME": str(tmp_path)}
    )
    assert findings.problems == []
    assert findings.unchecked == [
        "MODEL_NAME=org/model: context length and vocabulary "
        "(its config.json is not on this machine)",
        "SPECULATIVE_MODEL=org/draft: context length and vocabulary "
        "(its config.json is not on this machine)",
    ]


@pytest.mark.parametrize(
    "path", ["/no/such/folder", "./nothing", "../nothing", "~/model", "~nobody/x"]
)
def test_a_path_without_a_folder_is_refused(path: str) -> None:
    for variable in ("MODEL_NAME", "SPECULATIVE_MODEL"):
        (line,) = problems({"MODEL_NAME": "org/model", "HF_HOME": "/nowhere", variable: path})
        assert line == (
            f"{variable}={path}: is a path, and there is no such folder. "
            "Set it to a Hugging Face repository or to an existing folder."
        )


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff\xfe", b'{"a":' * 5000],
    ids=["cut off", "no text", "nested too deeply"],
)
def test_a_broken_config_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    (line,) = problems({"MODEL_NAME": str(tmp_path)})
    assert "its config.json cannot be read: " in line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("content", ["[]", "null", "3", '{"max_position_embeddings": "many"}'])
def test_a_config_of_another_shape_tells_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert problems({"MODEL_NAME": str(tmp_path), "MAX_MODEL_LEN": "9999"}) == []


@pytest.mark.parametrize(
    "name", ["/" + "x" * 5000, "x" * 5000, "org/\ud800", "a/../../b", "org/x\ny"]
)
def test_an_odd_name_gives_a_problem_or_a_line_and_no_crash(name: str, tmp_path: Path) -> None:
    plan = engine_args.EnginePlan({"model": name}, {"model": "MODEL_NAME"})
    findings = preflight.inspect(plan, {"HF_HOME": str(tmp_path)})
    lines = [*map(str, findings.problems), *findings.unchecked]
    assert len(lines) == 1
    assert lines[0].splitlines() == lines
    assert len(lines[0]) < 300


# ---- the context


@pytest.mark.parametrize(
    ("config", "length"),
    [
        (LLAMA, 2048),
        ({"n_positions": 1024}, 1024),
        ({"max_seq_len": 512}, 512),
        ({"seq_length": 32768}, 32768),
        ({"max_position_embeddings": 4096, "max_sequence_length": 2048}, 2048),
        ({"max_position_embeddings": 4096, "model_max_length": 131072}, 131072),
        ({"text_config": {"max_position_embeddings": 8192}, "max_position_embeddings": 7}, 8192),
        ({**LLAMA, "rope_scaling": None}, 2048),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}}, 8192),
        ({**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2}}, 4096),
        ({**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 2048),
        ({**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 2048),
        ({**LLAMA, "rope_scaling": {"type": "su", "long_factor": [1.0]}}, 2048),
        ({**LLAMA, "rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}, 2048),
        ({**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 2048),
        (
            {
                **LLAMA,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            16384,
        ),
        (
            {
                "model_type": "gemma3",
                "text_config": {
                    "max_position_embeddings": 131072,
                    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                },
            },
            131072,
        ),
        ({**LLAMA, "rope_scaling": "broken"}, 2048),
        ({"max_position_embeddings": None}, None),
        ({}, None),
    ],
)
def test_the_context_of_a_config(config: dict[str, Any], length: int | None) -> None:
    assert preflight.context_length(config) == length


@pytest.mark.engine
@pytest.mark.parametrize(
    "rope",
    [
        None,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    ],
)
def test_the_engine_finds_the_same_context(tmp_path: Path, rope: dict[str, Any] | None) -> None:
    from worker import launch

    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "torch_dtype": "bfloat16"}
    config = {
        "architectures": ["LlamaForCausalLM"],
        **LLAMA,
        **shape,
        **heads,
        "rope_scaling": rope,
    }
    base: dict[str, Any] = {"model": write_config(tmp_path, config), "skip_tokenizer_init": True}
    base["kv_cache_memory_bytes"] = 2**28

    made = launch.engine_config(launch.namespace(base))
    assert made.model_config.max_model_len == preflight.context_length(config)


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 1),
        ({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, 0),
        ({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": " True "}, 0),
        ({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "false"}, 1),
        ({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0"}, 1),
        ({"HF_OVERRIDES": '{"max_position_embeddings": 8192}'}, 0),
        ({"HF_OVERRIDES": '{"rope_scaling": {"rope_type": "linear", "factor": 2.0}}'}, 0),
        ({"HF_OVERRIDES": '{"vocab_size": 8192}'}, 1),
        ({"MAX_MODEL_LEN": "auto"}, 0),
        ({"MAX_MODEL_LEN": "0"}, 0),
    ],
)
def test_a_longer_context_is_refused_unless_it_is_asked_for(
    tmp_path: Path, more: dict[str, str], count: int
) -> None:
    model = write_config(tmp_path, LLAMA)
    assert len(problems({"MODEL_NAME": model, "MAX_MODEL_LEN": "4096", **more})) == count


# ---- the vocabularies


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({"SPECULATIVE_METHOD": "draft_model"}, 1),
        ({"SPECULATIVE_METHOD": "eagle3"}, 0),
        ({"SPECULATIVE_CONFIG": '{"method": "draft_model", "use_heterogeneous_vocab": true}'}, 0),
    ],
)
def test_a_draft_model_of_another_vocabulary_is_refused(
    tmp_path: Path, more: dict[str, str], count: int
) -> None:
    environ = {
        "MODEL_NAME": write_config(tmp_path / "target", LLAMA),
        "SPECULATIVE_MODEL": write_config(tmp_path / "draft", {**LLAMA, "vocab_size": 600}),
    }
    told = problems({**environ, **more})
    assert len(told) == count
    assert all("its vocabulary has 600 tokens and the target's 512" in line for line in told)


def test_a_draft_model_of_the_same_vocabulary_is_taken(tmp_path: Path) -> None:
    environ = {
        "MODEL_NAME": write_config(tmp_path / "target", LLAMA),
        "SPECULATIVE_MODEL": write_config(tmp_path / "draft", {"text_config": LLAMA}),
        "SPECULATIVE_METHOD": "draft_model",
    }
    assert inspect(environ) == Findings(draft_method="draft_model")


# ---- all that can be told, together


def test_problems_of_texts_of_arguments_and_of_files_come_together(tmp_path: Path) -> None:
    environ = {
        "MODEL_NAME": write_config(tmp_path, LLAMA),
        "MAX_MODEL_LEN": "4096",
        "DTYPE": "float61",
        "VLLM_EXTRA_ARGS": "--bogus",
        "SPECULATIVE_METHOD": "eagle",
    }
    with pytest.raises(ConfigurationError) as refused:
        preflight.examine(environ)
    assert [problem.variable for problem in refused.value.problems] == [
        *("DTYPE", "VLLM_EXTRA_ARGS", "SPECULATIVE_MODEL", "MAX_MODEL_LEN")
    ]


def test_a_good_environment_gives_settings_plan_and_findings(tmp_path: Path) -> None:
    environ = {"MODEL_NAME": write_config(tmp_path, LLAMA), "SEED": "1"}
    read, plan, findings = preflight.examine(environ)
    assert read.engine == {"seed": 1}
    assert plan.arguments["model"] == str(tmp_path)
    assert findings == Findings()


def test_the_cache_of_the_volume_is_where_the_worker_would_look(tmp_path: Path) -> None:
    cache(tmp_path / "huggingface-cache" / "hub", "org/model", LLAMA)
    environ = {"MODEL_NAME": "org/model", "MAX_MODEL_LEN": "4096", "BASE_PATH": str(tmp_path)}
    with pytest.raises(ConfigurationError, match="context of 2048 tokens"):
        preflight.examine(environ)


def test_without_a_model_on_the_platform_there_is_one_problem() -> None:
    with pytest.raises(ConfigurationError) as refused:
        preflight.examine(PLATFORM)
    assert [problem.variable for problem in refused.value.problems] == ["MODEL_NAME"]


VALUES = st.sampled_from(
    ["", "None", "0", "3", "2000", "true", "ngram", "[ngram]", "eagle3", "org/model",
     "/no/such", "{}", '{"method": "ngram"}', '{"model": [1], "method": 3}',
     '{"num_speculative_tokens": {"a": 1}}',
     '{"num_speculative_tokens_per_batch_size": [[1, 2], "x"]}', "--spec-model x",
     "--model None", "--speculative-config.model.x 3 --spec-method ngram", "--max-model-len 99",
     "~x/y", "\udcff", "é"]
)  # fmt: skip
NAMES = st.sampled_from(
    ["MODEL_NAME", "MODEL_REVISION", "SPECULATIVE_MODEL", "SPECULATIVE_METHOD",
     "SPECULATIVE_CONFIG", "NUM_SPECULATIVE_TOKENS", "NGRAM_PROMPT_LOOKUP_MIN",
     "NGRAM_PROMPT_LOOKUP_MAX", "HF_OVERRIDES", "SPECULATIVE_DISABLE_BY_BATCH_SIZE",
     "SPECULATIVE_MAX_MODEL_LEN", "SPECULATIVE_QUANTIZATION", "SPECULATIVE_MODEL_REVISION",
     "VLLM_EXTRA_ARGS", "VLLM_CONFIG_FILE", "MAX_MODEL_LEN", "HF_HOME",
     "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE", "MAX_NUM_SEQS", "ENABLE_AUTO_TOOL_CHOICE",
     "BASE_PATH", "RUNPOD_WEBHOOK_GET_JOB", "LORA_MODULES", "SERVED_MODEL_NAME",
     "VLLM_ALLOW_LONG_MAX_MODEL_LEN"]
)  # fmt: skip


@settings(
    max_examples=200,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.dictionaries(NAMES, VALUES | st.text(max_size=12), max_size=9))
def test_any_environment_is_taken_or_refused_in_whole_lines(environ: dict[str, str]) -> None:
    try:
        _, plan, findings = preflight.examine(environ)
    except ConfigurationError as refused:
        lines = [str(problem) for problem in refused.problems]
    else:
        lines = [*findings.unchecked, *plan.warnings]
        engine_args.command_line(plan.arguments)
    assert all(line.splitlines() == [line] for line in lines)
