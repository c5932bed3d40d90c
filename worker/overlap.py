"""Work done while the engine's children start, instead of after it."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def once_forked(work: Callable[[], None]) -> Iterator[None]:
    """Run `work` in a thread from the first fork inside the block; the block's end waits for it.

    Before the fork a second thread would be a risk: a child that is forked while the
    thread holds a lock inherits it locked, for ever. Without a fork, `work` runs at the end.
    """
    forked = threading.Event()
    os.register_at_fork(after_in_parent=forked.set)

    def wait_and_work() -> None:
        forked.wait()
        work()

    thread = threading.Thread(target=wait_and_work, name="overlap", daemon=True)
    thread.start()
    try:
        yield
    finally:
        forked.set()
        thread.join()
