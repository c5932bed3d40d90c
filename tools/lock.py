"""Pin every requirement, once for all machines: `make lock`.

A lock file holds names and versions only, one version for all of Python 3.11 to 3.14 on
x86-64 and ARM64 Linux. Each of these eight environments is resolved on its own, wheels
only, under the versions of the first; a package that not all of them need gets a marker.
uv's own `--universal` is no substitute: it reads one wheel's metadata for all platforms
and so misses what only the Linux wheel of intel-openmp asks for.

torch is found in PyTorch's CPU index, which uv knows; where that cannot be reached, a
folder with the wheel for Python 3.11 in `UV_FIND_LINKS` does.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
GLIBC = "manylinux_2_31"  # the oldest that llguidance has wheels for
ABSENT = ("torchvision", "torchaudio", "torchcodec")  # see tools/standins.py

Pins = dict[str, str]
Environment = tuple[str, str]


def main() -> None:
    lock("requirements-cpu", constraints={})
    engine = read(ROOT / "requirements-cpu.txt")
    lock("requirements", constraints=engine)
    lock("requirements-dev", constraints=engine)


def lock(name: str, constraints: Pins) -> None:
    """Write `name`.txt from `name`.in; exits with uv's own message where there is no solution."""
    environments = tuple(product(PYTHONS, MACHINES))
    wanted = [f"-r {ROOT / name}.in"]
    pins, torch_needs = resolve(environments[0], wanted, constraints, ABSENT)
    needed_by = {package: {environments[0]} for package in pins}
    # The CPU wheel of torch may be at hand for one Python alone, and its needs are the same for
    # all: elsewhere they are asked for in its place.
    extra, absent = [*wanted, *torch_needs], (*ABSENT, "torch")
    for environment in environments[1:]:
        known = {**constraints, **pins}
        found, _ = resolve(environment, extra, known, absent)
        pins.update(found)
        for package in found:
            needed_by.setdefault(package, set()).add(environment)
    if "torch" in pins:
        needed_by["torch"] = set(environments)
    lines = [f"{p}=={pins[p]}{marker(p, needed_by[p])}" for p in sorted(pins)]
    (ROOT / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{name}.txt: {len(lines)} packages")


def resolve(
    environment: Environment, wanted: Iterable[str], constraints: Pins, absent: Iterable[str]
) -> tuple[Pins, list[str]]:
    """Resolve for one environment; gives the pins, and which of them torch asks for."""
    python, machine = environment
    # Without a folder of wheels, uv looks for torch in PyTorch's own CPU index.
    backend = [] if os.environ.get("UV_FIND_LINKS") else ["--torch-backend", "cpu"]
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "in": wanted,
            "constraints": (f"{p}=={v}" for p, v in constraints.items() if p not in absent),
            "overrides": (f"{p}; sys_platform == 'never'" for p in absent),
        }
        for file, lines in files.items():
            Path(folder, file).write_text("\n".join(lines), encoding="utf-8")
        command = [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config"),
            *("--no-header", "--annotation-style", "line", "--only-binary", ":all:"),
            *("--python-version", python, "--python-platform", f"{machine}-{GLIBC}", *backend),
            *("--constraint", f"{folder}/constraints", "--override", f"{folder}/overrides"),
            f"{folder}/in",
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"No solution for Python {python} on {machine}: uv's message is above.")
    rows = [parts for line in done.stdout.splitlines() if (parts := parse(line))]
    return {p: v for p, v, _ in rows}, [p for p, _, via in rows if "torch" in via]


def parse(line: str) -> tuple[str, str, list[str]] | None:
    """Split `name==version  # via a, b`."""
    found = re.match(r"([a-z0-9-]+)==(\S+)(?:\s+# via (.*))?$", line)
    return (found[1], found[2], (found[3] or "").split(", ")) if found else None


def read(path: Path) -> Pins:
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ;")[0].split("==", 1) for line in lines)


def marker(package: str, environments: set[Environment]) -> str:
    """The marker that is true in just these environments."""
    pythons = [p for p in PYTHONS if any(p == e[0] for e in environments)]
    machines = [m for m in MACHINES if any(m == e[1] for e in environments)]
    if environments != set(product(pythons, machines)):
        sys.exit(f"{package} is needed by {sorted(environments)}: too odd for one marker.")
    conditions = []
    if len(machines) < len(MACHINES):
        conditions.append(f"platform_machine == '{machines[0]}'")
    if pythons[0] != PYTHONS[0]:
        conditions.append(f"python_version >= '{pythons[0]}'")
    if pythons[-1] != PYTHONS[-1]:
        conditions.append(f"python_version <= '{pythons[-1]}'")
    return " ; " + " and ".join(conditions) if conditions else ""


if __name__ == "__main__":
    main()
