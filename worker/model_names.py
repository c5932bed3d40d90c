"""What a model, a draft or a tokenizer may be called: a folder, a repository, a remote path."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker import redaction
from worker.errors import Problem

REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
# Object stores that the engine streams weights from: `vllm.transformers_utils.runai_utils`.
REMOTE = ("s3://", "gs://", "az://")
# The load formats that go with them; `auto` becomes the first (`vllm.config.vllm`).
STREAMERS = frozenset({"runai_streamer", "runai_streamer_sharded", "modelexpress", "auto"})
CONFIG_FILES = ("config.json", "params.json")  # Hugging Face's, and Mistral's
SET_ONE = "Set it to a Hugging Face repository, for instance Qwen/Qwen2.5-0.5B-Instruct"


def fault(variable: str, name: str, arguments: Mapping[str, Any]) -> Problem | None:
    """What keeps a name from being a folder, a repository or a remote path, or None."""
    if _is_folder(name):
        return None
    is_path = name.startswith(("/", "./", "../", "~"))
    if REPOSITORY.fullmatch(name) and not is_path:
        return None
    if name.casefold().startswith(REMOTE):
        return _unstreamed(variable, name, arguments)
    if is_path:
        why = "is a path, and there is no such folder"
        fix = "Set it to a Hugging Face repository or to an existing folder"
    elif re.search(r"""["'`]""", name):
        why, fix = "has quotes in it, which are taken as a part of the name", "Remove the quotes"
    elif "://" in name:
        why, fix = "is an address, and not a repository's name", SET_ONE
    else:
        why, fix = "is neither a folder nor a name that a repository can have", SET_ONE
    return Problem(variable, redaction.shown(variable, name), why, fix)


def _is_folder(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False


def _unstreamed(variable: str, name: str, arguments: Mapping[str, Any]) -> Problem | None:
    if str(arguments.get("load_format", "auto")).casefold() in STREAMERS:
        return None
    why = "is a remote path, which needs LOAD_FORMAT=runai_streamer"
    return Problem(variable, redaction.shown(variable, name), why, "Set it, or unset LOAD_FORMAT")


def folder_fault(variable: str, name: str, arguments: Mapping[str, Any]) -> Problem | None:
    """What keeps an existing folder from being a model's, or None."""
    folder = Path(name)
    if arguments.get("hf_config_path") or any((folder / file).exists() for file in CONFIG_FILES):
        return None
    why = f"is a folder without {' or '.join(CONFIG_FILES)}, so it holds no model"
    return Problem(variable, redaction.shown(variable, name), why, "Set it to the model's folder")
