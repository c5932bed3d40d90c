"""`python -m worker check` and `show`: what they print, how they end, and what they cost."""

import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from worker import __main__ as commands

ROOT = Path(__file__).parents[1]
HEAVY = (
    "torch",
    "vllm",
    "runpod",
    "transformers",
    "numpy",
    "huggingface_hub",
    "uvicorn",
    "fastapi",
)

BAD = {
    "MODEL_NAME": "/no/such/folder",
    "DTYPE": "float61",
    "NUM_SPECULATIVE_TOKENS": "many",
    "NGRAM_PROMPT_LOOKUP_MIN": "5",
    "NGRAM_PROMPT_LOOKUP_MAX": "2",
    "VLLM_EXTRA_ARGS": "--bogus --seed x",
    "VLLM_CONFIG_FILE": "/no/such/file.yaml",
    "QUANTIZATION": "bitsandbytes",
}
GOOD = {
    "MODEL_NAME": "org/model",
    "SPECULATIVE_MODEL": "[ngram]",
    "NUM_SPECULATIVE_TOKENS": "3",
    "NGRAM_PROMPT_LOOKUP_MIN": "2",
    "NGRAM_PROMPT_LOOKUP_MAX": "4",
    "MAX_CONCURRENCY": "8",
    "VLLM_EXTRA_ARGS": "--max-num-seqs 16",
    "MAX_MODEL_LENGTHS": "x",
    "HF_HOME": "/nowhere",
}


def run(
    *words: str, environ: Mapping[str, str] | None = None, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """One command as a process of its own, in an environment of these variables alone."""
    surroundings = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, *options, "-m", "worker", *words],
        env={**surroundings, **(environ or {})},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def shown(environ: Mapping[str, str]) -> dict[str, Any]:
    done = run("show", "--json", environ=environ)
    assert (done.returncode, done.stderr) == (0, "")
    read: dict[str, Any] = json.loads(done.stdout)
    return read


# ---- how they end


def test_a_good_environment_is_checked_with_each_value_and_its_source() -> None:
    done = run("check", environ=GOOD)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert 'model = "org/model"  (MODEL_NAME)' in lines
    assert "max_num_seqs = 16  (VLLM_EXTRA_ARGS)" in lines
    assert "max_concurrency = 8  (MAX_CONCURRENCY)" in lines
    assert "default_batch_size = 50  (default)" in lines
    (config,) = [line for line in lines if line.startswith("speculative_config = ")]
    assert config.endswith(
        "(SPECULATIVE_MODEL, NUM_SPECULATIVE_TOKENS, NGRAM_PROMPT_LOOKUP_MIN, "
        "NGRAM_PROMPT_LOOKUP_MAX)"
    )
    assert "warning: MAX_MODEL_LENGTHS is not a variable of this worker" in done.stdout
    assert "not checked: MODEL_NAME=org/model" in done.stdout
    assert lines[-1] == "The configuration is good."


def test_a_bad_environment_ends_with_two_and_all_problems_at_once() -> None:
    done = run("check", environ=BAD)
    assert (done.returncode, done.stdout) == (2, "")
    *lines, last = done.stderr.splitlines()
    assert sorted(line.partition("=")[0].partition(":")[0] for line in lines) == [
        *("DTYPE", "MODEL_NAME", "NGRAM_PROMPT_LOOKUP_MIN", "NUM_SPECULATIVE_TOKENS"),
        *("QUANTIZATION", "VLLM_CONFIG_FILE", "VLLM_EXTRA_ARGS", "VLLM_EXTRA_ARGS"),
    ]
    assert last == "8 problems; nothing was started"


@pytest.mark.parametrize("words", [("show",), ("show", "--json")])
def test_show_refuses_a_bad_environment_like_check(words: tuple[str, ...]) -> None:
    assert run(*words, environ=BAD).stderr == run("check", environ=BAD).stderr


def test_a_single_problem_is_counted_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["check"], {"DTYPE": "x"}) == 2
    assert capsys.readouterr().err.endswith("1 problem; nothing was started\n")


def test_an_empty_environment_is_good_and_serves_the_embedded_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert commands.main(["check"], {}) == 0
    assert "(embedded model (MODEL_NAME is not set))" in capsys.readouterr().out


SET = {
    "SPEC_DECODING_ACCEPTANCE_METHOD": ("typical_acceptance_sampler",) * 2,
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA": ("0.3", 0.3),
    "NUM_SPECULATIVE_TOKENS": ("3", 3),
    "SPECULATIVE_MAX_MODEL_LEN": ("2048", 2048),
    "SPECULATIVE_REPORT": ("false", False),
    "PORT": ("8000", 8000),
}


@pytest.mark.parametrize("more", [{}, {"SPECULATIVE_METHOD": "ngram"}], ids=["off", "on"])
def test_check_prints_every_variable_that_is_set(
    capsys: pytest.CaptureFixture[str], more: dict[str, str]
) -> None:
    environ = {name: text for name, (text, _) in SET.items()}
    assert commands.main(["check"], {"MODEL_NAME": "org/model", **environ, **more}) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, (_, value) in SET.items():
        line = f"{name.lower()} = {json.dumps(value)}  ({name})"
        (config,) = [line for line in lines if line.startswith("speculative_config")] or [""]
        assert line in lines or name in config, name
    assert not more or config.endswith("(SPECULATIVE_METHOD, NUM_SPECULATIVE_TOKENS)")


@pytest.mark.parametrize("words", [(), ("chekc",), ("check", "--json")])
def test_a_wrong_command_is_refused(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert "usage: python -m worker" in done.stderr


# ---- what they cost


@pytest.mark.parametrize("environ", [GOOD, BAD], ids=["good", "bad"])
def test_check_takes_less_than_two_seconds(environ: dict[str, str]) -> None:
    """Of the processor's time: other tests may be at work on this machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run("check", environ=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (("check",), GOOD),
        (("check",), BAD),
        (("show", "--json"), GOOD),
        (("show",), {**GOOD, "SPECULATIVE_METHOD": "ngram", "LORA_MODULES": "a=/b"}),
    ],
)
def test_nothing_heavy_is_imported(words: tuple[str, ...], environ: dict[str, str]) -> None:
    done = run(*words, environ=environ, options=("-X", "importtime"))
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert {"pydantic", "env_schema", "worker"} <= imported
    assert not imported & set(HEAVY)


# ---- what show says


def test_show_prints_one_object_with_the_documented_keys() -> None:
    read = shown(GOOD)
    assert read.keys() >= {
        *("engine_args", "speculative_config", "worker", "sources", "warnings", "vllm_serve")
    }
    config = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    assert read["speculative_config"] == config
    assert read["engine_args"]["speculative_config"] == config
    assert read["engine_args"]["model"] == "org/model"
    assert read["engine_args"]["max_num_seqs"] == 16
    assert "dtype" not in read["engine_args"]
    assert read["worker"]["max_concurrency"] == 8
    assert read["worker"]["platform"] is False
    assert read["sources"]["model"] == "MODEL_NAME"
    assert read["sources"]["max_num_seqs"] == "VLLM_EXTRA_ARGS"
    assert read["sources"]["max_concurrency"] == "MAX_CONCURRENCY"
    assert len(read["warnings"]) == 1
    words = shlex.split(read["vllm_serve"])
    assert words[:3] == ["vllm", "serve", "org/model"]
    assert words[words.index("--max-num-seqs") + 1] == "16"
    assert json.loads(words[words.index("--speculative-config") + 1]) == config


def test_show_without_speculation_says_null() -> None:
    read = shown({"MODEL_NAME": "org/model"})
    assert read["speculative_config"] is None
    assert "--speculative-config" not in read["vllm_serve"]
    assert read["warnings"] == []


def test_every_value_that_is_passed_has_a_source() -> None:
    read = shown({**GOOD, "HF_TOKEN": "hf_abcdefgh12345678", "CUSTOM_CHAT_TEMPLATE": "{{ x }}"})
    assert read["engine_args"].keys() <= read["sources"].keys()
    assert [read[part]["hf_token"] for part in ("worker", "sources")] == ["***", "HF_TOKEN"]


def test_show_for_people_ends_with_the_command_line() -> None:
    done = run("show", environ=GOOD)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == shown(GOOD)["vllm_serve"]


@pytest.mark.parametrize(
    "text",
    [
        *("{{ x }}\n- 'a' \"b\" $HOME `ls` \\", "{é}\u2028漢", "--{dashes}"),
        *("{bytes} \udcff", "{}\x1b[31m"),
    ],
)
def test_any_text_is_shown_as_it_was_given(text: str) -> None:
    read = shown({"MODEL_NAME": "org/model", "CUSTOM_CHAT_TEMPLATE": text})
    assert read["engine_args"]["chat_template"] == text
    assert text in read["vllm_serve"].replace("'\"'\"'", "'")


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_a_poor_terminal_is_no_reason_to_fail(locale: str) -> None:
    environ = {"CUSTOM_CHAT_TEMPLATE": "{é漢}\udcff", "LC_ALL": locale}
    environ |= {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = run("check", environ=environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert shown(environ)["engine_args"]["chat_template"].startswith("{")
    refused = run("check", environ={**environ, "MODEL_NAME": "org/é漢\udcff"})
    assert refused.returncode == 2
    assert refused.stderr.startswith("MODEL_NAME=org/")


# ---- secrets


KEYS = [f"s3cr3t-{n}-'quo\"ted\\{n}" for n in range(8)]


def planted(folder: Path, *, broken: bool) -> dict[str, str]:
    """An environment with keys in each place where one may be."""
    file = folder / "engine.yaml"
    file.write_text(
        json.dumps(
            {
                "hf-token": KEYS[0],
                "api-key": [KEYS[1]],
                "additional-config": {"password": KEYS[2]},
                **({"seed": "x"} if broken else {}),
            }
        )
    )
    flags = ["--hf-token", KEYS[3], "--api-key", KEYS[4]]
    nested = {"kv_connector": "X", "kv_connector_extra_config": {"auth_token": KEYS[5]}}
    return {
        "MODEL_NAME": "org/model",
        "HF_TOKEN": KEYS[6],
        "API_KEY": KEYS[7],
        "CUSTOM_CHAT_TEMPLATE": f"{{{{ x }}}} {KEYS[6]}",
        "KV_TRANSFER_CONFIG": json.dumps(nested) + ("," if broken else ""),
        "VLLM_EXTRA_ARGS": shlex.join([*flags, *(["--seed", "x"] if broken else [])]),
        "VLLM_CONFIG_FILE": str(file),
        **({"MODEL": f"other {KEYS[6]}", "DTYPE": KEYS[7], "SEED": KEYS[6]} if broken else {}),
    }


@pytest.mark.parametrize("words", [("check",), ("show",), ("show", "--json")], ids=" ".join)
@pytest.mark.parametrize("broken", [False, True], ids=["good", "bad"])
def test_no_key_is_printed_wherever_it_is(
    tmp_path: Path, words: tuple[str, ...], broken: bool
) -> None:
    done = run(*words, environ=planted(tmp_path, broken=broken))
    assert done.returncode == (2 if broken else 0)
    printed = done.stdout + done.stderr
    assert "***" in printed
    assert [key[:8] for key in KEYS if key[:8] in printed] == []
