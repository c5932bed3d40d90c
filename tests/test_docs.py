"""The commands in the documents run, and say what the documents say they do."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from worker import advice, job_input
from worker.pace import Pace

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/speculative-decoding.md")


@dataclass(frozen=True)
class Command:
    """One command of a document, and the lines that it is said to print."""

    document: str
    text: str
    prints: tuple[str, ...]

    @property
    def variables(self) -> dict[str, str]:
        words = shlex.split(self.text, comments=True)
        return dict(word.split("=", 1) for word in words[: self._program_at(words)])

    @property
    def words(self) -> list[str]:
        words = shlex.split(self.text, comments=True)
        return words[self._program_at(words) :]

    @staticmethod
    def _program_at(words: list[str]) -> int:
        is_variable = [re.fullmatch(r"[A-Z_]+=.*", word, re.DOTALL) is None for word in words]
        return is_variable.index(True)


def commands() -> Iterator[Command]:
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        for block in re.findall(r"^ *```console\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
            for part in re.split(r"^ *\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
                command, *prints = [line.strip() for line in part.strip().splitlines()]
                yield Command(document, command, tuple(prints))


COMMANDS = list(commands())
OURS = [c for c in COMMANDS if c.words[1:3] == ["-m", "worker"]]
HANDLER = [c for c in COMMANDS if "handler.py" in c.words[1:2]]
MAKE = [c for c in COMMANDS if c.words[0] == "make"]


def run(command: Command, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "worker", *words],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **command.variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_command_is_of_a_kind_that_is_tested() -> None:
    assert len(OURS) > 5
    assert sorted(c.text for c in (*OURS, *HANDLER, *MAKE)) == sorted(c.text for c in COMMANDS)


@pytest.mark.parametrize("command", OURS, ids=lambda command: command.text)
def test_a_command_of_the_worker_runs_and_prints_what_is_said(command: Command) -> None:
    printed = run(command, *command.words[3:]).splitlines()
    assert set(command.prints) <= set(printed)


@pytest.mark.parametrize("command", HANDLER, ids=lambda command: command.text)
def test_a_worker_that_is_started_has_a_good_configuration_and_a_good_job(
    command: Command,
) -> None:
    """It is not started here: it may download a model."""
    run(command, "check")
    assert command.words[2] == "--test_input"
    given = command.words[3]
    text = given if given.startswith("{") else (ROOT / given).read_text(encoding="utf-8")
    job_input.parse(json.loads(text), Pace())


@pytest.mark.parametrize("command", MAKE, ids=lambda command: command.text)
def test_a_target_of_make_exists(command: Command) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{command.words[1]}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("document", [*DOCUMENTS, "docs/configuration.md", "docs/architecture.md"])
def test_each_link_to_a_file_has_one(document: str) -> None:
    path = ROOT / document
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_table_of_speed_ups_is_that_of_the_formula() -> None:
    text = (ROOT / "docs/speculative-decoding.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| a \|(.*?)\n\n", text, re.DOTALL | re.MULTILINE)
    head, _, *rows = table.splitlines()
    counts = [int(number) for number in re.findall(r"k = (\d+)", head)]
    for row in rows:
        rate, *factors = [float(cell) for cell in row.strip("| ").split("|")]
        expected = [round(advice.speed_up(rate, count, 0.05), 2) for count in counts]
        assert factors == expected
