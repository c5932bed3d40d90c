"""The whole path: a real worker, the real SDK's loop, a real engine and model."""

import json
import re
import time
from pathlib import Path

import psutil
import pytest
from worker_under_test import (
    MODEL,
    WorkerUnderTest,
    native_text,
    objects,
    streamed_text,
)

pytestmark = pytest.mark.engine

SAMPLES = sorted((Path(__file__).parents[1] / "test_inputs").glob("*.json"))
LONG = {"prompt": "Once", "stream": True, "max_tokens": 3000, "ignore_eos": True}
QUOTE = (
    "Repeat this text exactly, word for word:\n\nThe quick brown fox jumps over the lazy dog. "
    "Pack my box with five dozen liquor jugs. How vexingly quick daft zebras jump!"
)


def cpu_seconds(worker: WorkerUnderTest) -> float:
    """CPU time of the engine's processes: it stands still when they have nothing to do."""
    times = [psutil.Process(pid).cpu_times() for pid in worker.process.descendants()]
    return sum(t.user + t.system for t in times)


def wait_until_idle(worker: WorkerUnderTest, within: float = 10.0) -> None:
    """Wait until the engine has stopped computing."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        before = cpu_seconds(worker)
        time.sleep(0.5)
        if cpu_seconds(worker) - before < 0.1:
            return
    raise AssertionError("the engine still computes\n" + worker.process.tail())


def test_the_first_two_jobs_may_come_at_the_same_instant(worker: WorkerUnderTest) -> None:
    for job_id in worker.first_jobs:
        job = worker.platform.wait(job_id, 240)
        assert job.status == "COMPLETED", job.error
        assert job.outputs[-1]["usage"]["output"] == 4


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_each_sample_job_is_answered(worker: WorkerUnderTest, sample: Path) -> None:
    job = worker.run(json.loads(sample.read_text())["input"])
    assert job.status == "COMPLETED", job.error
    assert job.output
    assert job.output == job.outputs  # the aggregate is what was streamed


def test_a_native_stream_adds_up_to_the_answer_without_streaming(worker: WorkerUnderTest) -> None:
    question = {"messages": [{"role": "user", "content": QUOTE}], "temperature": 0}
    whole = worker.run({**question, "max_tokens": 48})
    stream = worker.run({**question, "max_tokens": 48, "stream": True})
    assert len(whole.outputs) == 1
    assert len(stream.outputs) > 1
    assert native_text(stream) == native_text(whole) != ""
    assert stream.outputs[-1]["usage"] == whole.outputs[-1]["usage"]
    assert (
        stream.outputs[-1]["choices"][0]["finish_reason"]
        == (whole.outputs[-1]["choices"][0]["finish_reason"])
    )


def test_an_openai_stream_adds_up_to_the_answer_without_streaming(worker: WorkerUnderTest) -> None:
    whole = worker.chat(QUOTE, max_tokens=48)
    stream = worker.chat(QUOTE, max_tokens=48, stream=True, stream_options={"include_usage": True})
    assert stream.status == whole.status == "COMPLETED"
    (answer,) = whole.outputs
    assert streamed_text(stream) == answer["choices"][0]["message"]["content"] != ""
    usage = next(part["usage"] for part in objects(stream) if part.get("usage"))
    assert usage["completion_tokens"] == answer["usage"]["completion_tokens"]


def test_every_chunk_of_an_openai_stream_holds_whole_events(worker: WorkerUnderTest) -> None:
    job = worker.chat("Write: größer, 日本語, 🎉🎉, naïve", stream=True, max_tokens=40)
    assert job.status == "COMPLETED", job.error
    for chunk in job.outputs:
        assert chunk.startswith("data: ")
        assert chunk.endswith("\n\n")
        assert "\ufffd" not in chunk
    assert "".join(job.outputs).count("data: [DONE]") == 1


def test_usage_counts_token_ids_when_a_step_accepts_several(worker: WorkerUnderTest) -> None:
    job = worker.run(
        {"messages": [{"role": "user", "content": QUOTE}], "temperature": 0, "max_tokens": 60,
         "ignore_eos": True, "stream": True}
    )  # fmt: skip
    last = job.outputs[-1]
    assert last["usage"]["output"] == 60
    accepted, steps = last["speculative"]["accepted"], last["speculative"]["steps"]
    assert accepted > 0
    pieces = sum(len(chunk["choices"][0]["tokens"]) for chunk in job.outputs)
    assert pieces <= 60 - accepted  # a step that accepted drafts sent its tokens as one piece
    assert sum(last["speculative"]["accepted_per_position"]) == accepted
    assert steps < 60


def test_speculation_accepts_a_text_that_quotes_its_prompt(worker: WorkerUnderTest) -> None:
    job = worker.chat(QUOTE, max_tokens=40)
    figures = job.outputs[0]["metrics"]["speculative_decoding"]
    assert figures["num_accepted_draft_tokens"] > 10
    assert figures["draft_acceptance_rate"] > 0.5


def test_a_job_may_leave_the_figures_out(worker: WorkerUnderTest) -> None:
    job = worker.run({"prompt": "Tell", "max_tokens": 4, "speculative": False})
    assert "speculative" not in job.outputs[-1]


def test_the_engines_counters_are_one_text(worker: WorkerUnderTest) -> None:
    job = worker.run({"openai_route": "/metrics"})
    (text,) = job.outputs
    (accepted,) = re.findall(r"^vllm:spec_decode_num_accepted_tokens_total\{.*\} (.*)$", text, re.M)
    assert float(accepted) > 0


def test_models_are_listed_by_their_served_name_without_a_path(worker: WorkerUnderTest) -> None:
    for openai_input in ("missing", None, {}):
        job_input = {"openai_route": "/v1/models", "openai_input": openai_input}
        if openai_input == "missing":
            del job_input["openai_input"]
        (listing,) = worker.run(job_input).outputs
        assert [model["id"] for model in listing["data"]] == [MODEL]
        assert listing["data"][0]["root"] == MODEL


def test_eight_jobs_run_at_once_and_all_end(worker: WorkerUnderTest) -> None:
    worker.wait_until_ready()
    jobs = worker.platform.submit_many(
        [{"prompt": f"Story {n}:", "stream": True, "max_tokens": 40, "ignore_eos": True}
         for n in range(8)]
    )  # fmt: skip
    ended = [worker.platform.wait(job, 90) for job in jobs]
    assert [job.status for job in ended] == ["COMPLETED"] * 8
    assert [job.outputs[-1]["usage"]["output"] for job in ended] == [40] * 8
    last_start = max(job.first_chunk_at or 0 for job in ended)
    first_end = min(job.finished_at or 0 for job in ended)
    assert last_start < first_end, "they ran one after the other"


def test_a_job_cancelled_in_mid_stream_leaves_the_engine(worker: WorkerUnderTest) -> None:
    job = worker.platform.submit(LONG)
    worker.platform.wait_for_chunks(job, 3)
    worker.platform.cancel(job)
    wait_until_idle(worker)
    ended = worker.platform.job(job)
    assert ended.status == "CANCELLED"
    assert ended.final_posts == 0
    assert worker.run({"prompt": "Next", "max_tokens": 2}).status == "COMPLETED"


def test_a_job_cancelled_while_its_chunk_is_posted_leaves_the_engine(
    worker: WorkerUnderTest,
) -> None:
    job = worker.platform.submit(LONG)
    with worker.platform.hold_stream_posts(job) as hold:
        worker.platform.wait_until(lambda: bool(hold.inside), "a chunk being posted")
        worker.platform.cancel(job)
        wait_until_idle(worker)  # the post is still held: only the task's end can have told
    assert worker.platform.job(job).final_posts == 0
    assert worker.run({"prompt": "Next", "max_tokens": 2}).status == "COMPLETED"


def test_an_openai_job_cancelled_in_mid_stream_leaves_the_engine(worker: WorkerUnderTest) -> None:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 3000, "ignore_eos": True}
    job = worker.platform.submit(
        {"openai_route": "/v1/completions", "openai_input": {**body, "stream": True}}
    )
    worker.platform.wait_for_chunks(job, 3)
    worker.platform.cancel(job)
    wait_until_idle(worker)
    assert worker.platform.job(job).final_posts == 0


def test_what_gathers_during_a_slow_post_goes_out_as_one(worker: WorkerUnderTest) -> None:
    job = worker.platform.submit(
        {"prompt": "Tell", "stream": True, "max_tokens": 60, "ignore_eos": True}
    )
    with worker.platform.hold_stream_posts(job) as hold:
        worker.platform.wait_until(lambda: bool(hold.inside), "a chunk being posted")
        wait_until_idle(worker, within=60)  # the engine goes on to the end, whatever the post does
    ended = worker.platform.wait(job, 60)
    assert ended.outputs[-1]["usage"]["output"] == 60
    assert len(ended.chunks) <= 3


def test_a_lost_post_is_repeated(worker: WorkerUnderTest) -> None:
    worker.platform.faults.abort("done")
    worker.platform.faults.reply(429, "stream")
    try:
        job = worker.run({"prompt": "Tell", "stream": True, "max_tokens": 8, "ignore_eos": True})
    finally:
        worker.platform.faults.clear()
    assert job.status == "COMPLETED"
    assert job.output == job.outputs


def test_top_k_with_a_temperature_does_not_end_the_engine(worker: WorkerUnderTest) -> None:
    for n in range(3):
        job = worker.run({"prompt": f"Hi {n}", "top_k": 20, "temperature": 0.8, "max_tokens": 12})
        assert job.status == "COMPLETED", job.error


def test_log_probabilities_of_one_job_do_not_end_the_engine(worker: WorkerUnderTest) -> None:
    quote = {"prompt": "a b " * 8, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    with_ids = {"prompt": "Hi", "max_tokens": 4, "logprobs": 2, "logprob_token_ids": [1, 5]}
    jobs = worker.platform.submit_many([{**quote, "logprobs": 2}, with_ids, quote])
    ended = [worker.platform.wait(job, 60) for job in jobs]
    assert [job.status for job in ended] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert len(ended[0].outputs[0]["choices"][0]["logprobs"]) == 40


BAD_JOBS = [
    ("hello", "input", 400),
    ([1], "input", 400),
    (None, "input", 400),
    ({}, "prompt", 400),
    ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt", 400),
    ({"prompt": "a", "max_tokenz": 3}, "max_tokenz", 400),
    ({"prompt": "a", "sampling_params": {"max_tokens": "many"}}, "max_tokens", 400),
    ({"prompt": "a", "sampling_params": {"temperature": True}}, "temperature", 400),
    ({"prompt": "a", "sampling_params": {"temperature": -1}}, "temperature", 400),
    ({"prompt": "a", "sampling_params": {"guided_json": {}}}, "guided_json", 400),
    ({"prompt": "a", "structured_outputs": {"json": {"$ref": "#"}}}, "structured_outputs", 400),
    ({"prompt": "a", "structured_outputs": {"grammar": "root ::= root"}},
     "structured_outputs", 400),
    ({"messages": [{"role": "user", "content": "a"}],
      "chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs", 400),
    ({"openai_route": "/version"}, "openai_route", 404),
    ({"prompt": "a", "speculative": "yes"}, "speculative", 400),
    ({"openai_route": "/v1/completions", "openai_input": {"prompt": 1}}, None, 400),
    ({"openai_route": "/v1/completions", "openai_input": {"model": "x", "prompt": "a"}},
     "model", 404),
]  # fmt: skip


@pytest.mark.parametrize(("job_input", "param", "code"), BAD_JOBS, ids=str)
def test_a_bad_job_fails_by_name_and_the_next_one_is_answered(
    worker: WorkerUnderTest, job_input: object, param: str | None, code: int
) -> None:
    job = worker.run(job_input)
    assert job.status == "FAILED"
    error = json.loads(job.error or "")
    assert error["code"] == code
    assert param is None or error["param"] == param
    assert "Traceback" not in error["message"]
    assert worker.run({"prompt": "Next", "max_tokens": 2}, 15).status == "COMPLETED"


def test_an_error_on_a_streaming_route_is_shown_and_fails_the_job(worker: WorkerUnderTest) -> None:
    job = worker.chat("Hi", stream=True, model="nobody")
    assert job.status == "FAILED"
    assert json.loads(job.error or "")["code"] == 404
    (event,) = objects(job)
    assert event["error"]["param"] == "model"


def test_the_worker_did_nothing_that_the_platform_would_mind(worker: WorkerUnderTest) -> None:
    assert worker.platform.defects == []
    assert worker.platform.unfinished == []
