"""What the start makes of odd environments: secrets, exceptions, front-end checks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.engine_errors import one_sentence

HANDLER = str(Path(__file__).parents[1] / "handler.py")
SECRET = "planted-secret-4711"  # noqa: S105  # a planted one


def refused(tiny_model: Path, **variables: str) -> tuple[int, str]:
    """The exit code and all output of a start that must fail before the weights."""
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("RUNPOD_")},
        "MODEL_NAME": str(tiny_model),
        "HF_HUB_OFFLINE": "1",
        "HF_TOKEN": SECRET,
        **variables,
    }
    done = subprocess.run(
        [sys.executable, HANDLER, "--test_input", '{"input": {"prompt": "a"}}'],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_config_that_the_engine_refuses_is_one_sentence_without_values(tiny_model: Path) -> None:
    config = f'{{"kv_connector": "x", "kv_role": "nobody", "engine_id": "{SECRET}"}}'
    code, output = refused(tiny_model, KV_TRANSFER_CONFIG=config)
    assert code == 2
    assert SECRET not in output
    last = output.strip().splitlines()[-1]
    assert last.startswith(("The engine did not start: ", "1 problem", "KV_TRANSFER_CONFIG"))
    assert "input_value" not in output
    assert "Traceback" not in output


def test_pydantics_dump_is_left_out_of_the_sentence() -> None:
    from pydantic import TypeAdapter, ValidationError

    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, int]).validate_python({"port": SECRET})
    wrapped = ValueError(str(caught.value))
    wrapped.__cause__ = caught.value
    for error in (caught.value, wrapped):
        sentence = one_sentence(error)
        assert sentence.startswith("port: Input should be a valid integer")
        assert SECRET not in sentence


def test_a_key_errors_text_is_its_own() -> None:
    assert one_sentence(KeyError("invalid tool call parser: x")) == "invalid tool call parser: x"


def test_an_exception_without_words_is_named() -> None:
    assert one_sentence(AssertionError()) == "AssertionError"
