"""Real processes: a child goes with its parent, however that ends."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

GONE_S = 1.0

FORK = """
    import os, signal, sys, time
    from worker.lifeline import tie_forked_children
    {tie}
    if not os.fork():
        if not os.fork():
            os.write(1, b"%d\\n" % os.getpid())
            time.sleep(60)
            os._exit(0)
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(60)
        os._exit(0)
    {end}
"""
MULTIPROCESSING = """
    import multiprocessing, os, sys, time
    from worker.lifeline import tie_forked_children
    tie_forked_children()
    def grandchild():
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(60)
    def child():
        context.Process(target=grandchild).start()
        grandchild()
    context = multiprocessing.get_context("fork")
    context.Process(target=child, daemon=False).start()
    time.sleep(60)
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped by someone else does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pids: list[int], seconds: float = GONE_S) -> None:
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.01)


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that runs the code and prints the pids of its descendants."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    ) as worker:
        try:
            yield worker
        finally:
            worker.kill()


@contextmanager
def family(code: str, size: int = 2) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The worker and its descendants, which are gone in the end."""
    with process(code) as worker:
        assert worker.stdout is not None
        pids = [int(worker.stdout.readline()) for _ in range(size)]
        try:
            assert all(map(alive, pids))
            yield worker, pids
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_forked_children_go_with_a_worker_that_is_killed(signum: signal.Signals) -> None:
    with family(FORK.format(tie="tie_forked_children()", end="time.sleep(60)")) as (worker, pids):
        worker.send_signal(signum)
        worker.wait(10)
        wait_until_gone(pids)
        assert not any(map(alive, pids))


def test_children_of_multiprocessing_go_with_a_worker_that_is_killed() -> None:
    with family(MULTIPROCESSING) as (worker, pids):
        worker.kill()
        worker.wait(10)
        wait_until_gone(pids)
        assert not any(map(alive, pids))


def test_forked_children_go_with_a_worker_that_exits_hard() -> None:
    end = "sys.stdin.readline(); os._exit(1)"
    with family(FORK.format(tie="tie_forked_children()", end=end)) as (worker, pids):
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
        assert worker.wait(10) == 1
        wait_until_gone(pids)
        assert not any(map(alive, pids))


def test_a_grandchild_goes_with_its_own_parent() -> None:
    with family(FORK.format(tie="tie_forked_children()", end="time.sleep(60)")) as (worker, pids):
        (child,) = psutil.Process(worker.pid).children()
        child.kill()
        wait_until_gone(pids)
        assert not any(map(alive, pids))
        assert worker.poll() is None


def test_children_that_are_not_tied_would_stay() -> None:
    """What the tie is for; without it every test above would have to fail."""
    with family(FORK.format(tie="", end="time.sleep(60)")) as (worker, pids):
        worker.kill()
        worker.wait(10)
        wait_until_gone(pids)
        assert all(map(alive, pids))


def test_a_child_forked_by_a_thread_outlives_the_thread() -> None:
    """The kernel would take the end of the thread for that of the parent."""
    code = """
        import os, threading, time
        from worker.lifeline import tie_forked_children
        tie_forked_children()
        def fork():
            if not os.fork():
                time.sleep(60)
                os._exit(0)
            time.sleep(0.5)  # the child has asked the kernel by now
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        time.sleep(0.5)
        import psutil
        print(*(child.pid for child in psutil.Process().children()), flush=True)
        time.sleep(60)
    """
    with family(code, size=1) as (_, (pid,)):
        assert alive(pid)


def test_a_spawned_child_ties_itself_to_its_parent() -> None:
    code = """
        import subprocess, sys, time
        child = '''
        import os, time
        from worker.lifeline import die_with_parent
        die_with_parent(os.getppid())
        print(os.getpid(), flush=True)
        time.sleep(60)
        '''
        import textwrap
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(child)])
        time.sleep(60)
    """
    with family(code, size=1) as (worker, pids):
        worker.kill()
        worker.wait(10)
        wait_until_gone(pids)
        assert not any(map(alive, pids))


def test_a_child_whose_parent_has_ended_already_ends_at_once() -> None:
    code = "from worker.lifeline import die_with_parent; die_with_parent(2**22 + 1); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b""
