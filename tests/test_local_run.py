"""One job on this machine: where it comes from, and what is printed of it."""

import json
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from worker import local_run
from worker.errors import ConfigurationError
from worker.job_output import Emission
from worker.jobs import Jobs

JOB = '{"input": {"prompt": "Hi"}}'
READ = {"id": "local", "input": {"prompt": "Hi"}}


def refusal(arguments: list[str]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        local_run.requested(arguments, on_platform=False)
    return str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--test_input", JOB],
        [f"--test_input={JOB}"],
        ["--other", "--test_input", f"\n {JOB}"],
        ["--test_input", JOB, "--rp_log_level", "DEBUG"],
    ],
)
@pytest.mark.parametrize("on_platform", [True, False])
def test_a_job_on_the_command_line_is_taken(arguments: list[str], on_platform: bool) -> None:
    assert local_run.requested(arguments, on_platform) == READ


@pytest.mark.parametrize("form", ["{flag} {path}", "{flag}={path}"])
def test_a_job_in_a_file_is_taken(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a job.json"
    path.write_text('{"id": "own", "input": {"prompt": "日本語"}}', encoding="utf-8")
    arguments = [part.format(flag=local_run.FLAG, path=path) for part in form.split(" ")]
    assert local_run.requested(arguments, on_platform=False) == {
        "id": "own",
        "input": {"prompt": "日本語"},
    }


def test_the_file_of_the_working_directory_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_input.json").write_text(JOB)
    assert local_run.requested([], on_platform=False) == READ
    assert local_run.requested([], on_platform=True) is None


def test_without_a_platform_and_a_job_the_way_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "RUNPOD_WEBHOOK_GET_JOB" in refusal([])
    assert local_run.FLAG in refusal([])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ('{"input": }', "line 1, column 11"),
        ('{"input": {"prompt":\n "Hi"}', "line 2, column 7"),
        ("{}", 'has no "input" key'),
        ('{"prompt": "Hi"}', 'has no "input" key'),
        ("[1]", "neither a JSON object nor a file"),
        ('"text"', "neither a JSON object nor a file"),
        ("", "neither a JSON object nor a file"),
        ("/", "Is a directory"),
        ("missing.json", "No such file"),
        ("x" * 5000, "File name too long"),
    ],
)
def test_a_bad_job_is_one_line_that_says_why(given: str, why: str) -> None:
    told = refusal([local_run.FLAG, given])
    assert told.startswith(local_run.FLAG)
    assert why in told
    assert "\n" not in told
    assert len(told) < 250


def test_a_flag_without_a_value_is_told() -> None:
    assert "neither a JSON object nor a file" in refusal([local_run.FLAG])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe{", "not UTF-8"),
        (b"not json", "line 1, column 1"),
        (b"[1]", "input"),
        (b'"input"', "input"),
        (b"", "not valid JSON"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(content)
    told = refusal([local_run.FLAG, str(path)])
    assert path.name in told
    assert why in told
    assert "\n" not in told


class Emitting(Jobs):
    """Jobs that yield what they are told to."""

    def __init__(self, *emissions: Emission) -> None:
        self.emissions = emissions
        self.closed = False

    async def serve(self, job: Mapping[str, Any]) -> AsyncGenerator[Emission, None]:
        try:
            for emission in self.emissions:
                yield emission
        finally:
            self.closed = True


async def printed(capsys: pytest.CaptureFixture[str], *emissions: Emission) -> tuple[int, str, str]:
    """The exit code, and what was printed on stdout and stderr."""
    jobs = Emitting(*emissions)
    code = await local_run._print_job(jobs, {"input": {}}, time.monotonic())
    assert jobs.closed
    out, err = capsys.readouterr()
    return code, out, err


FIGURES = {
    "steps": 3,
    "drafted": 9,
    "accepted": 4,
    "acceptance_rate": 4 / 9,
    "mean_acceptance_length": 7 / 3,
    "accepted_per_position": [2, 1, 1],
}


@pytest.mark.asyncio
async def test_a_native_stream_is_printed_as_text_with_its_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = await printed(
        capsys,
        {"choices": [{"tokens": ["Hello", " "]}], "usage": {"input": 3, "output": 2}},
        {
            "choices": [{"tokens": ["日本"], "finish_reason": "stop"}],
            "usage": {"input": 3, "output": 5},
            "speculative": FIGURES,
        },
    )
    assert (code, out) == (0, "Hello 日本\n")
    assert "first token" in err
    assert "5 tokens for 3 of prompt" in err
    assert "4 of 9 drafted tokens accepted (44%), 2.33 tokens per step over 3 steps" in err


@pytest.mark.asyncio
async def test_an_answer_in_one_piece_has_no_first_token_to_measure_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = {"choices": [{"tokens": ["Hello"]}], "usage": {"input": 3, "output": 40}}
    _, _, err = await printed(capsys, answer)
    assert "first token" not in err
    assert "answer" in err
    assert "40 tokens for 3 of prompt" in err


def sse(*parts: Any) -> str:
    return "".join(f"data: {json.dumps(part, ensure_ascii=False)}\n\n" for part in parts)


@pytest.mark.asyncio
async def test_an_openai_stream_is_printed_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {
        "acceptance_histogram": [1, 1, 0, 1],
        "num_spec_steps": 3,
        "num_draft_tokens": 9,
        "num_accepted_draft_tokens": 4,
        "draft_acceptance_rate": 4 / 9,
        "mean_acceptance_length": 7 / 3,
    }
    code, out, err = await printed(
        capsys,
        sse({"choices": [{"delta": {"role": "assistant", "content": ""}}]}),
        sse(
            {"choices": [{"delta": {"content": "a\u2028"}}]},
            {"choices": [{"delta": {"content": "b"}}]},
        ),
        sse({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
        sse(
            {
                "choices": [],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2},
                "metrics": {"speculative_decoding": metrics},
            }
        )
        + "data: [DONE]\n\n",
    )
    assert (code, out) == (0, "a\u2028b\n")
    assert "2 tokens for 3 of prompt" in err
    assert "4 of 9 drafted tokens accepted" in err


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("emission", "out"),
    [
        ({"choices": [{"text": "completed"}]}, "completed\n"),
        ({"choices": [{"message": {"role": "assistant", "content": "said"}}]}, "said\n"),
        ({"choices": [{"message": {"role": "assistant", "content": None}}]}, "\n"),
        ([{"choices": [{"delta": {"content": "a"}}]}, {"choices": [{"text": "b"}]}], "ab\n"),
        (sse({"choices": [{"text": "completed"}]}), "completed\n"),
        (": a comment\n\n", "\n"),
        ("# HELP x\n\nx 1.0\n", "# HELP x\n\nx 1.0\n\n"),
        ("data: [DONE]\n\n", "\n"),
    ],
)
async def test_the_text_of_each_shape_is_printed(
    emission: Emission, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (await printed(capsys, emission))[:2] == (0, out)


@pytest.mark.asyncio
async def test_what_carries_no_text_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    models = {"object": "list", "data": [{"id": "模型", "root": None}]}
    code, out, _ = await printed(capsys, models)
    assert code == 0
    assert json.loads(out) == models
    assert "模型" in out


@pytest.mark.asyncio
async def test_a_failure_is_told_after_what_came_and_is_an_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = await printed(
        capsys,
        {"choices": [{"tokens": ["Hel"]}], "usage": {"input": 3, "output": 1}},
        {"error": '{"message": "broken"}'},
        {"choices": [{"tokens": ["never"]}]},
    )
    assert (code, out) == (1, "Hel\n")
    assert err.endswith('The job failed: {"message": "broken"}\n')


@pytest.mark.asyncio
async def test_a_job_without_output_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert await printed(capsys) == (0, "\n", "")
