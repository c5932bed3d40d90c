"""What children print at boot: passed on whole, and searched for the cause."""

import logging
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from vllm.logger import _DATE_FORMAT, _FORMAT
from vllm.logging_utils import ColoredFormatter, NewLineFormatter

from worker.boot_log import BootLog, first_cause

# what the pinned engine's children were seen to end with, and how it reaches their parent
CAUSES = [
    "ValueError: To serve at least one request with the model's max seq len (4096), (0.5 GiB KV "
    "cache is needed); estimated maximum model length is 2176 [kv]",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    "ValueError: Load format 'nope' is not supported",
    "RuntimeError: _C::static_scaled_fp8_quant() expected at most 0 argument(s) but received 4",
    "NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX.",
    "ValueError: No common block size for 7 (CPU_ATTN: [MultipleOf(32)]).",
    "AssertionError: Not enough allowed NUMA nodes to bind threads of 2 local CPUWorkers",
    "ValueError: The first batch-size range must start at 1 (got 4)",
    "KeyError: 'model.layers.0.self_attn.qkv_proj.weight'",
]
CONSEQUENCES = [
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
    "{'EngineCore': 1}",
    "Exception: WorkerProc initialization failed due to an exception in a background process.",
]
FORMATTERS = [NewLineFormatter(_FORMAT, _DATE_FORMAT), ColoredFormatter(_FORMAT, _DATE_FORMAT)]


def printed(formatter: logging.Formatter, last_line: str, level: int = logging.ERROR) -> str:
    """A traceback as a child prints it: through the engine's own formatter."""
    record = logging.LogRecord("vllm", level, "core.py", 1, "EngineCore failed.", None, None)
    record.vllm_process_name = "EngineCore"
    record.exc_text = (
        "Traceback (most recent call last):\n"
        '  File "core.py", line 1, in run\n'
        f"    raise Something('ValueError: not this')\n{last_line}"
    )
    return formatter.format(record) + "\n"


@contextmanager
def listening(log: BootLog) -> Iterator[None]:
    """Listen, and afterwards wait until all has been passed on."""
    with log.listening():
        yield
    log.finish(10)


def child(code: str) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)


@pytest.mark.parametrize("formatter", FORMATTERS, ids=["plain", "coloured"])
@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_is_found_in_what_a_child_printed(
    formatter: logging.Formatter, cause: str
) -> None:
    text = "".join(printed(formatter, line) for line in (cause, *CONSEQUENCES))
    log = BootLog(forward=False)
    with listening(log):
        os.write(2, text.encode())
    assert log.cause() == cause


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory.",
            "OutOfMemoryError: CUDA out of memory.",
        ),
        ("huggingface_hub.errors.GatedRepoError: 401 x", "GatedRepoError: 401 x"),
        ("AssertionError", "AssertionError"),
        ("(EngineCore pid=1) ValueError: x", "ValueError: x"),
        ("(Worker_TP0 pid=7) ERROR 11-29 14:00:00 [m.py:1] OSError: x", "OSError: x"),
        ("(EngineCore pid=1) WARNING 11-29 14:00:00 [x.py:1] ImportError: no flash", None),
        ("(EngineCore pid=1) INFO 11-29 14:00:00 [x.py:1] Error handling is on", None),
        ("    raise ValueError('x')", None),
        ("see ValueError: x", None),
        ("ValueError:", None),
        ("", None),
        *[(line, None) for line in CONSEQUENCES],
    ],
)
def test_a_line_names_a_cause_or_does_not(line: str, cause: str | None) -> None:
    assert first_cause([line]) == cause


def test_the_first_cause_wins() -> None:
    assert first_cause([CONSEQUENCES[0], *CAUSES]) == CAUSES[0]


def test_an_old_line_stays_the_cause_however_much_follows() -> None:
    log = BootLog(forward=False)
    with listening(log):
        child("print('ValueError: the cause', flush=True)\nfor n in range(5000): print('line', n)")
        os.write(1, (CAUSES[2] + "\n").encode())
    assert log.cause() == "ValueError: the cause"


def test_a_cause_behind_a_progress_bar_is_found() -> None:
    log = BootLog(forward=False)
    with listening(log):
        os.write(2, b"Loading:  0%\rLoading: 50%\r(EngineCore pid=1) ValueError: halfway\n")
    assert log.cause() == "ValueError: halfway"


def test_a_last_line_without_an_end_counts() -> None:
    log = BootLog(forward=False)
    with listening(log):
        child("import os; os.write(2, b'ValueError: cut ')")
    assert log.cause() == "ValueError: cut"


def test_all_that_a_child_wrote_is_known_when_the_cause_is_asked_for() -> None:
    """Inside the block, and at once: as the boot of the engine does when a child has failed."""
    code = "import os; os.write(2, b'noise\\n' * 9000 + b'ValueError: the last of much\\n')"
    for _ in range(10):
        log = BootLog(forward=False)
        with log.listening():
            child(code)
            assert log.cause() == "ValueError: the last of much"
        log.finish(10)


@pytest.mark.timeout(20)
def test_a_huge_line_neither_hides_a_later_cause_nor_takes_long() -> None:
    log = BootLog(forward=False)
    with listening(log):
        os.write(2, b"ERROR a.b.c " * 400_000 + b"\nValueError: after it\n")
    assert log.cause() == "ValueError: after it"


def test_without_an_error_there_is_no_cause() -> None:
    log = BootLog(forward=False)
    with listening(log):
        os.write(1, b"all is well\n")
    assert log.cause() is None
    assert BootLog(forward=True).cause() is None


def test_output_is_passed_on_whole(capfd: pytest.CaptureFixture[str]) -> None:
    log = BootLog(forward=True)
    with listening(log):
        os.write(2, "日本語\n".encode())
        child("for n in range(20000): print('line', n)")
    err = capfd.readouterr().err
    assert "日本語\n" in err
    assert [line for line in err.splitlines() if line.startswith("line ")] == [
        f"line {n}" for n in range(20000)
    ]


def test_output_of_both_streams_of_a_child_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with listening(BootLog(forward=True)):
        child("import sys; print('to stdout'); print('to stderr', file=sys.stderr)")
    err = capfd.readouterr().err
    assert "to stdout\n" in err
    assert "to stderr\n" in err


def test_a_quiet_boot_shows_nothing_and_what_follows_shows(
    capfd: pytest.CaptureFixture[str],
) -> None:
    reader, writer = os.pipe()
    code = f"""
        import os
        print('early', flush=True)
        os.write({writer}, b'.')
        input()
        print('late', flush=True)
    """
    log = BootLog(forward=False)
    with log.listening():
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            pass_fds=[writer],
        )
        os.read(reader, 1)
    process.communicate(b"\n", timeout=20)
    log.finish(10)
    os.close(reader)
    os.close(writer)
    assert capfd.readouterr() == ("", "late\n")


@pytest.mark.parametrize(("forward", "err"), [(True, "in the boot\n"), (False, "")])
def test_pythons_own_buffers_go_where_they_were_meant_to(forward: bool, err: str) -> None:
    code = f"""
        from worker.boot_log import BootLog
        print("before")
        with (log := BootLog(forward={forward})).listening():
            print("in the boot")
        print("after")
        log.finish(10)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("before\nafter\n", err)


def test_the_descriptors_are_restored(capfd: pytest.CaptureFixture[str]) -> None:
    before = [os.fstat(fd) for fd in (1, 2)]
    opened = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(RuntimeError, match="boot"), listening(BootLog(forward=True)):
        raise RuntimeError("boot")
    log = BootLog(forward=True)
    with log.listening():
        log.cause()
    log.finish(10)
    assert [os.fstat(fd) for fd in (1, 2)] == before
    assert len([*Path("/proc/self/fd").iterdir()]) == opened
    os.write(1, b"to stdout")
    assert capfd.readouterr().out == "to stdout"


def test_a_child_does_not_block_where_nobody_reads_our_output() -> None:
    """As when the platform's log collector has gone: the engine must go on."""
    code = """
        import os
        from worker.boot_log import BootLog
        reader, writer = os.pipe()
        os.dup2(writer, 2)
        os.close(reader)
        os.close(writer)
        log = BootLog(forward=True)
        with log.listening():
            for _ in range(100):
                os.write(1, b"x" * 10000)
            os.write(1, b"\\nValueError: still read\\n")
        log.finish(10)
        raise SystemExit(log.cause() != "ValueError: still read")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_nothing_is_lost_where_our_output_does_not_block() -> None:
    code = """
        import os
        from worker.boot_log import BootLog
        os.set_blocking(2, False)
        with (log := BootLog(forward=True)).listening():
            os.write(1, b"0123456789" * 100_000)
        log.finish(30)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.PIPE
    )
    time.sleep(1)  # until the pipe is full
    _, err = process.communicate(timeout=60)
    assert err == b"0123456789" * 100_000
