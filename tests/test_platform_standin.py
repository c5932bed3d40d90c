"""The stand-in against the real SDK: its offers reach the SDK, and what the SDK does shows."""

import asyncio
import io
import json
import math
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from standin import Platform, WorkerProcess

TOY = [sys.executable, str(Path(__file__).parent / "toy_worker.py")]
SSE = ['data: {"n": 1}\n\n', 'data: {"n": 2}\n\n']


@pytest.fixture(scope="module")
def shared_platform() -> Iterator[Platform]:
    with Platform(poll_seconds=1) as platform:
        yield platform


@pytest.fixture(scope="module")
def worker(
    shared_platform: Platform, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    cwd = tmp_path_factory.mktemp("worker")
    with shared_platform.start_worker(TOY, cwd) as worker:
        shared_platform.wait_until(lambda: bool(shared_platform.pings), "the first ping")
        yield worker


@pytest.fixture
def platform(shared_platform: Platform, worker: WorkerProcess) -> Iterator[Platform]:
    """The shared platform with a ready worker of eight slots, and no faults left behind."""
    yield shared_platform
    shared_platform.faults.clear()


@pytest.fixture
def own_platform() -> Iterator[Platform]:
    """A platform for a test that ends its worker."""
    with Platform(poll_seconds=0.5) as platform:
        yield platform


def wait_for_eight_slots(platform: Platform) -> None:
    platform.wait_until(lambda: platform.open_takes.get("worker-1") == 8, "an idle worker")


def is_zombie(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def order(count: int, pause: float = 0.0) -> dict[str, Any]:
    return {"chunks": [f"t{number} " for number in range(count)], "pause": pause}


def test_chunks_are_streamed_in_order_while_the_job_runs(platform: Platform) -> None:
    job_id = platform.submit(order(5, pause=0.1))
    assert list(platform.stream(job_id, timeout=5)) == order(5)["chunks"]
    job = platform.job(job_id)
    assert job.chunks[-1].at - job.chunks[0].at > 0.35
    assert job.taken_at is not None
    assert job.first_chunk_at is not None
    assert job.finished_at is not None
    assert job.submitted_at <= job.taken_at < job.first_chunk_at < job.finished_at
    assert job.text == "t0 t1 t2 t3 t4 "


def test_the_final_result_is_the_aggregate_of_the_chunks(platform: Platform) -> None:
    values = ["é日本", {"a": [1, None]}, 7, ""]
    job = platform.wait(platform.submit({"chunks": values}, job_id="mine"), timeout=5)
    assert (job.id, job.status, job.output) == ("mine", "COMPLETED", values)
    assert job.outputs == values
    assert (job.final_posts, job.count("done"), job.defects) == (1, 1, [])


def test_waiting_for_chunks_that_never_come_ends_with_the_job(platform: Platform) -> None:
    job_id = platform.submit(order(2))
    with pytest.raises(AssertionError, match=r"3 chunks of .*: the job has ended"):
        platform.wait_for_chunks(job_id, 3, timeout=5)


def test_eight_jobs_are_taken_as_a_batch_and_run_at_once(platform: Platform) -> None:
    wait_for_eight_slots(platform)
    began = time.monotonic()
    job_ids = platform.submit_many([order(4, pause=0.2)] * 8)
    jobs = [platform.wait(job_id, timeout=10) for job_id in job_ids]
    assert time.monotonic() - began < 2
    taken = [job.taken_at or 0 for job in jobs]
    assert max(taken) - min(taken) < 0.05
    assert max(job.first_chunk_at or 0 for job in jobs) < min(job.finished_at or 0 for job in jobs)


def test_a_take_can_deliver_more_jobs_than_it_was_asked_for(platform: Platform) -> None:
    wait_for_eight_slots(platform)
    platform.faults.over_deliver = 2
    job_ids = platform.submit_many([order(1, pause=0.3)] * 10)
    jobs = [platform.wait(job_id, timeout=10) for job_id in job_ids]
    taken = [job.taken_at or 0 for job in jobs]
    assert max(taken) - min(taken) < 0.05


def test_a_cancel_reaches_a_handler_that_waits(platform: Platform, worker: WorkerProcess) -> None:
    job_id = platform.submit({"chunks": ["a"], "then_wait": 10})
    job = platform.wait_for_chunks(job_id, 1, timeout=5)
    time.sleep(0.1)  # the post of the chunk is over
    platform.cancel(job_id)
    match = worker.wait_for_log(rf"toy saw-CancelledError {job_id} at (\S+)", timeout=3)
    assert job.status == "CANCELLED"
    assert (len(job.chunks), job.final_posts, job.defects) == (1, 0, [])
    assert job.stop_sent_at is not None
    assert float(match[1]) - job.stop_sent_at < 0.25


def test_a_cancel_inside_a_chunk_post_ends_the_task_and_not_the_generator(
    platform: Platform, worker: WorkerProcess
) -> None:
    job_id = platform.submit(order(3))
    with platform.hold_stream_posts(job_id) as hold:
        platform.wait_for_chunks(job_id, 1, timeout=5)
        assert hold.inside == 1
        platform.cancel(job_id)
        platform.wait_until(lambda: hold.abandoned == 1, "the worker to hang up", timeout=3)
        match = worker.wait_for_log(rf"toy task-done {job_id} at (\S+)", timeout=2)
        stopped = platform.job(job_id).stop_sent_at
        assert stopped is not None
        assert float(match[1]) - stopped < 0.25
        assert f"toy saw-GeneratorExit {job_id}" not in worker.log()
    assert platform.job(job_id).final_posts == 0


def test_a_time_out_stops_the_job_too(platform: Platform, worker: WorkerProcess) -> None:
    job_id = platform.submit({"chunks": ["a"], "then_wait": 10})
    platform.wait_for_chunks(job_id, 1, timeout=5)
    platform.time_out(job_id)
    worker.wait_for_log(f"toy task-done {job_id}", timeout=3)
    assert platform.job(job_id).status == "TIMED_OUT"


def test_a_queued_job_can_be_cancelled(own_platform: Platform) -> None:
    job_id = own_platform.submit(order(1))
    assert own_platform.health()["jobs"]["inQueue"] == 1
    own_platform.cancel(job_id)
    assert own_platform.wait(job_id, timeout=1).status == "CANCELLED"
    assert own_platform.health()["jobs"]["inQueue"] == 0


def test_a_released_post_lets_the_job_go_on(platform: Platform) -> None:
    job_id = platform.submit(order(3))
    with platform.hold_stream_posts(job_id) as hold:
        platform.wait_for_chunks(job_id, 1, timeout=5)
        time.sleep(0.2)
        assert len(platform.job(job_id).chunks) == 1
        hold.release()
        assert platform.wait(job_id, timeout=5).outputs == order(3)["chunks"]


def test_a_held_final_post_leaves_the_job_to_the_sdk(platform: Platform) -> None:
    job_id = platform.submit(order(1))
    with platform.hold_final_posts(job_id) as hold:
        job = platform.wait(job_id, timeout=5)
        platform.wait_until(lambda: hold.inside == 1, "the final post", timeout=2)
        assert not job.final_acknowledged
    platform.wait_until(lambda: job.final_acknowledged, "the acknowledgement", timeout=2)


def test_a_500_on_a_chunk_is_retried_by_the_sdk(platform: Platform) -> None:
    job_id = platform.submit(order(2, pause=0.3))
    platform.faults.reply(500, "stream", job_id=job_id)
    job = platform.wait(job_id, timeout=8)
    assert job.outputs == order(2)["chunks"]
    assert [post.answer for post in job.posts] == [500, 200, 200, 200]
    assert 1.8 < job.posts[1].at - job.posts[0].at < 3


@pytest.mark.parametrize("status", [400, 429])
def test_a_4xx_on_a_chunk_loses_it(platform: Platform, status: int) -> None:
    job_id = platform.submit(order(2, pause=0.3))
    platform.faults.reply(status, "stream", job_id=job_id)
    job = platform.wait(job_id, timeout=5)
    assert job.outputs == ["t1 "]
    assert job.output == ["t0 ", "t1 "]
    assert [post.answer for post in job.posts] == [status, 200, 200]


@pytest.mark.parametrize(("delivered", "outputs"), [(False, ["t1 "]), (True, ["t0 ", "t1 "])])
def test_a_broken_connection_on_a_chunk_is_not_retried(
    platform: Platform, delivered: bool, outputs: list[str]
) -> None:
    job_id = platform.submit(order(2, pause=0.3))
    platform.faults.abort("stream", job_id=job_id, delivered=delivered)
    job = platform.wait(job_id, timeout=5)
    assert job.outputs == outputs
    assert [post.answer for post in job.posts] == ["abort", 200, 200]


def test_a_lost_final_result_shows_as_an_unfinished_job_and_a_readable_error(
    own_platform: Platform, tmp_path: Path
) -> None:
    with own_platform.start_worker(TOY, tmp_path):
        own_platform.faults.abort("done")
        job_id = own_platform.submit(order(1))
        own_platform.wait_for_chunks(job_id, 1, timeout=15)
        with pytest.raises(TimeoutError, match="Failed to return job results") as failure:
            own_platform.wait(job_id, timeout=1)
        assert f"job {job_id}: IN_PROGRESS, 1 chunks, 0 final posts" in str(failure.value)
        assert own_platform.unfinished == [own_platform.job(job_id)]


def test_a_round_trip_slows_one_job_and_not_the_other(platform: Platform) -> None:
    slow, fast = platform.submit_many([order(5), order(5)])
    platform.faults.delay(0.1, "stream", job_id=slow)
    began = time.monotonic()
    platform.wait(fast, timeout=5)
    assert time.monotonic() - began < 0.4
    chunks = platform.wait(slow, timeout=5).chunks
    assert chunks[-1].at - chunks[0].at >= 0.4


@pytest.mark.parametrize("constant", ["nan", "inf"])
def test_a_body_that_is_not_json_is_a_defect(platform: Platform, constant: str) -> None:
    job_id = platform.submit({"constant": constant})
    platform.wait_until(lambda: platform.job(job_id).count("done") == 1, "the result", timeout=5)
    assert platform.job(job_id).outputs == []
    assert [one.split(":")[0] for one in platform.job(job_id).defects] == [
        "chunk is not strict JSON",
        "final result is not strict JSON",
    ]
    assert any(job_id in defect for defect in platform.defects)


def test_a_chunk_over_the_limit_is_a_defect(platform: Platform) -> None:
    job = platform.wait(platform.submit({"size": 1_000_000}), timeout=5)
    assert job.defects == ["chunk has 1000014 bytes; the limit is 1000000"]
    assert [post.answer for post in job.posts] == [400, 200]


def test_a_handlers_exception_fails_the_job(platform: Platform) -> None:
    job = platform.wait(platform.submit({"chunks": ["a"], "raise": "no luck"}), timeout=5)
    assert (job.status, job.outputs, job.output) == ("FAILED", ["a"], None)
    assert job.error.startswith("handler: no luck")


def test_a_progress_update_is_not_the_result(platform: Platform) -> None:
    job = platform.wait(platform.submit({"progress": "half", "chunks": ["a"]}), timeout=5)
    assert (job.progress, job.output, job.final_posts) == (["half"], ["a"], 1)


def test_a_non_string_on_an_openai_stream_is_a_defect(platform: Platform) -> None:
    body = {"stream": True, "frames": [{"not": "text"}]}
    job_id = platform.submit({"openai_route": "/v1/chat/completions", "openai_input": body})
    (defect,) = platform.wait(job_id, timeout=5).defects
    assert defect.startswith("chunk of an OpenAI stream is not a string")


def test_pings_name_the_running_jobs(platform: Platform) -> None:
    job_id = platform.submit(order(3, pause=0.5))
    platform.wait_until(
        lambda: any(job_id in ping.job_ids for ping in platform.pings), "its ping", timeout=5
    )
    assert platform.health()["workers"] == {"idle": 0, "running": 1, "unhealthy": 0}
    platform.wait(job_id, timeout=5)


def test_a_platform_that_does_not_hold_polls_is_asked_without_end(platform: Platform) -> None:
    platform.faults.reply(204, "take", times=math.inf)
    time.sleep(1.1)  # the poll that is out comes back
    before = platform.requests["take-batch"]
    time.sleep(0.3)
    assert platform.requests["take-batch"] - before > 60


def test_a_missing_stop_channel_is_logged_and_jobs_still_run(
    platform: Platform, worker: WorkerProcess
) -> None:
    platform.faults.reply(404, "stop", times=math.inf)
    worker.wait_for_log("monitor_stop_signals.*404", timeout=4)
    assert platform.wait(platform.submit(order(1)), timeout=5).status == "COMPLETED"


def test_sigterm_lets_the_running_job_finish(own_platform: Platform, tmp_path: Path) -> None:
    one_slot = {"TOY_CONCURRENCY": "1"}
    with own_platform.start_worker(TOY, tmp_path, extra=one_slot) as worker:
        job_id = own_platform.submit(order(4, pause=0.2))
        own_platform.wait_for_chunks(job_id, 1, timeout=15)
        worker.signal(signal.SIGTERM)
        assert worker.wait(timeout=5) == 0
        assert own_platform.job(job_id).status == "COMPLETED"
        assert worker.descendants() == []
        assert own_platform.requests["take"] > 0
        late = own_platform.submit(order(1))
        with pytest.raises(AssertionError, match="the worker has ended"):
            own_platform.wait(late, timeout=5)


def test_close_ends_what_outlives_a_killed_worker(own_platform: Platform, tmp_path: Path) -> None:
    with own_platform.start_worker(TOY, tmp_path) as worker:
        own_platform.wait_until(lambda: bool(own_platform.pings), "the first ping", timeout=15)
        (ping_process,) = worker.descendants()
        worker.signal(signal.SIGKILL)
        assert worker.wait(timeout=5) == -signal.SIGKILL
        assert worker.descendants() == [ping_process]
        with pytest.raises(AssertionError, match="the worker ended without 'never'"):
            worker.wait_for_log("never", timeout=5)
    assert worker.descendants() == []
    assert not psutil.pid_exists(ping_process) or is_zombie(ping_process)


def test_a_killed_workers_poll_takes_no_job(own_platform: Platform, tmp_path: Path) -> None:
    with own_platform.start_worker(TOY, tmp_path / "first", worker_id="first") as first:
        own_platform.wait_until(lambda: "first" in own_platform.open_takes, "its take", timeout=15)
        first.signal(signal.SIGKILL)
        first.wait(timeout=5)
        with own_platform.start_worker(TOY, tmp_path / "second", worker_id="second"):
            job = own_platform.wait(own_platform.submit(order(1)), timeout=15)
            assert (job.worker_id, job.status) == ("second", "COMPLETED")


def test_the_hubs_template_without_a_query_works(own_platform: Platform, tmp_path: Path) -> None:
    template = f"{own_platform.url}/job-take/$RUNPOD_POD_ID"
    with own_platform.start_worker(
        TOY, tmp_path, extra={"RUNPOD_WEBHOOK_GET_JOB": template}
    ) as worker:
        job_id = own_platform.submit({"chunks": ["a"], "then_wait": 10})
        own_platform.wait_for_chunks(job_id, 1, timeout=15)
        own_platform.cancel(job_id)
        worker.wait_for_log(f"{job_id}.*Stopping job", timeout=3)
        assert own_platform.job(job_id).worker_id == "$RUNPOD_POD_ID"


def test_a_wrong_key_is_a_defect(own_platform: Platform, tmp_path: Path) -> None:
    with own_platform.start_worker(TOY, tmp_path, extra={"RUNPOD_AI_API_KEY": "other"}) as worker:
        worker.wait_for_log("Failed to get job.*401", timeout=15)
    assert "wrong Authorization on take-batch" in own_platform.defects


def test_posts_after_the_end_are_defects(own_platform: Platform) -> None:
    job_id = own_platform.submit(order(1))
    job = own_platform.job(job_id)

    async def scenario() -> None:
        final: dict[str, object] = {"output": []}
        own_platform.faults.abort("done", delivered=True)
        with pytest.raises(aiohttp.ClientConnectionError):
            await post_as_worker(own_platform, "job-done", job_id, final)
        assert (job.status, job.final_posts) == ("COMPLETED", 1)
        assert await post_as_worker(own_platform, "job-done", job_id, final) == 200
        assert own_platform.defects == []  # the first answer was lost: a repetition is right
        assert await post_as_worker(own_platform, "job-done", job_id, final) == 400
        assert await post_as_worker(own_platform, "job-stream", job_id, {"output": "a"}) == 400
        assert await post_as_worker(own_platform, "job-done", "unknown", final) == 404

    asyncio.run(scenario())
    assert job.defects == ["second final result", "chunk after the final result"]
    assert own_platform.defects[0] == "done post for the unknown job unknown"


def test_a_result_after_a_cancel_is_ignored(own_platform: Platform) -> None:
    job_id = own_platform.submit(order(1))
    own_platform.cancel(job_id)

    async def scenario() -> None:
        assert await post_as_worker(own_platform, "job-stream", job_id, {"output": "a"}) == 200
        assert await post_as_worker(own_platform, "job-done", job_id, {"output": ["a"]}) == 200

    asyncio.run(scenario())
    job = own_platform.job(job_id)
    assert (job.status, job.output, job.chunks, job.final_posts) == ("CANCELLED", None, [], 1)
    assert (len(job.late_chunks), job.defects) == (1, [])


@pytest.mark.parametrize(
    ("route", "body", "defect"),
    [
        ("job-stream", {"output": 1, "error": 2}, "chunk has the keys ['error', 'output']"),
        ("job-stream", ["output"], "chunk is not a JSON object"),
        ("job-stream", {"output": "\ud800"}, "chunk is not strict JSON"),
        ("job-done", {"error": {"message": "an object"}}, "error is not a string"),
        ("job-done", {"output": "x" * 20_000_000}, "final result has 20000014 bytes"),
        ("job-done", {"output": []}, "OpenAI result is not one element"),
    ],
)
def test_a_body_of_the_wrong_shape_is_a_defect(
    own_platform: Platform, route: str, body: object, defect: str
) -> None:
    job_id = own_platform.submit({"openai_route": "/v1/models"})
    asyncio.run(post_as_worker(own_platform, route, job_id, body))
    assert defect in own_platform.job(job_id).defects[0]


async def post_as_worker(platform: Platform, route: str, job_id: str, body: object) -> int:
    url = f"{platform.url}/{route}/worker-1/{job_id}?gpu=SIM&isStream=false"
    headers = {"Authorization": platform.api_key}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(url, data=io.BytesIO(json.dumps(body).encode())) as response,
    ):
        return response.status


@asynccontextmanager
async def client(platform: Platform) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {platform.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        yield session


async def call(platform: Platform, method: str, path: str, **options: Any) -> Any:
    async with (
        client(platform) as session,
        session.request(method, platform.url + path, **options) as response,
    ):
        return await response.json()


def test_clients_run_stream_and_read_a_job_over_http(platform: Platform) -> None:
    async def scenario() -> None:
        reply = await call(platform, "POST", "/run", json={"input": order(2, pause=0.2)})
        assert reply["status"] == "IN_QUEUE"
        await platform.wait_for_chunks_async(reply["id"], 1, timeout=5)
        first = await call(platform, "GET", f"/stream/{reply['id']}")
        assert first == {"status": "IN_PROGRESS", "stream": [{"output": "t0 "}]}
        outputs = [output async for output in platform.stream_async(reply["id"], timeout=5)]
        assert outputs == ["t0 ", "t1 "]
        last = await call(platform, "GET", f"/stream/{reply['id']}")
        assert last == {"status": "COMPLETED", "stream": [{"output": "t1 "}]}
        status = await call(platform, "GET", f"/status/{reply['id']}")
        assert status["output"] == ["t0 ", "t1 "]
        assert status["workerId"] == "worker-1"
        assert status["executionTime"] >= 400

    asyncio.run(scenario())


def test_clients_wait_cancel_and_purge_over_http(platform: Platform) -> None:
    async def scenario() -> None:
        done = await call(platform, "POST", "/runsync", json={"input": order(1)})
        assert (done["status"], done["output"]) == ("COMPLETED", ["t0 "])
        assert re.fullmatch(r"sync-[0-9a-f-]{36}-u1", done["id"])
        options = {"json": {"input": order(2, pause=5)}, "params": {"wait": "1000"}}
        running = await call(platform, "POST", "/runsync", **options)
        assert running["status"] == "IN_PROGRESS"
        ended = await call(platform, "POST", f"/cancel/{running['id']}")
        assert ended == {"id": running["id"], "status": "CANCELLED"}
        assert (await call(platform, "POST", "/purge-queue"))["removed"] == 0
        assert (await call(platform, "GET", "/health"))["jobs"]["inQueue"] == 0
        async with aiohttp.ClientSession() as session:
            assert (await session.get(f"{platform.url}/health")).status == 401

    asyncio.run(scenario())


def test_openai_clients_get_text_objects_and_failures(platform: Platform) -> None:
    async def post(body: dict[str, Any]) -> tuple[int, str, str]:
        url = f"{platform.url}/openai/v1/chat/completions"
        async with client(platform) as session, session.post(url, json=body) as response:
            return response.status, response.content_type, await response.text()

    async def scenario() -> None:
        streamed = await post({"stream": True, "frames": SSE})
        assert streamed == (200, "text/event-stream", "".join(SSE) + "data: [DONE]\n\n")
        assert await post({"n": 1}) == (
            200,
            "application/json",
            '{"object": "chat.completion", "echo": {"n": 1}}',
        )
        status, _, text = await post({"stream": True, "fail": "broken"})
        assert (status, '"error": "broken"' in text) == (500, True)
        models = await call(platform, "GET", "/openai/v1/models")
        assert models == {"object": "chat.completion", "echo": {}}
        assert platform.jobs[-1].input == {"openai_route": "/v1/models", "openai_input": None}

    asyncio.run(scenario())
