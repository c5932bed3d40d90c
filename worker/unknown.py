"""Variables that look like ours but are not: each is told with the nearest known name.

An environment is full of names that are nobody's business here, so a name counts as a
near miss only where it is close to a known one and not of another program.
"""

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches

from worker import catalog, extra_args
from worker.legacy import LEGACY

# How alike two names must be (difflib's ratio): MAX_MODEL_LENGTH and MAX_MODEL_LEN have
# 0.90, SPECULATIVE_TOKENS and NUM_SPECULATIVE_TOKENS 0.90; HOSTNAME and HOST 0.67.
LIKENESS = 0.84
LIKENESS_OF_OUR_FAMILIES = 0.75
SHORTEST = 6

# Beginnings that belong to the families of variables documented here.
OUR_FAMILIES = ("SPECULATIVE_", "NGRAM_", "SPEC_DECODING_", "TYPICAL_ACCEPTANCE_", "NUM_SPEC")

# Beginnings and names that belong to other programs.
FOREIGN = (
    "RUNPOD_", "CUDA_", "NVIDIA_", "NCCL_", "TORCH", "PYTORCH_", "PYTHON", "PIP_", "OMP_",
    "MKL_", "KMP_", "HF_XET_", "HF_DATASETS_", "TRANSFORMERS_", "TRITON_", "XDG_", "LC_",
    "SSH_", "GIT_", "npm_", "KUBERNETES_", "NODE_NAME", "POD_", "AWS_", "CI_", "SSL_CERT_",
    "GITHUB_", "DEBIAN_", "UV_", "LD_",
)  # fmt: skip

# What Hugging Face's libraries read themselves, beside the families above.
OF_HUGGING_FACE = frozenset({
    "HF_ASSETS_CACHE", "HF_DEBUG", "HF_DEVICE_CODE_OAUTH_CLIENT_ID", "HF_EDITOR", "HF_ENDPOINT",
    "HF_HOME", "HF_HUB_CACHE", "HF_HUB_DISABLE_EXPERIMENTAL_WARNING",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_HUB_DISABLE_PROGRESS_BARS",
    "HF_HUB_DISABLE_SHARED_BLOBS", "HF_HUB_DISABLE_SYMLINKS", "HF_HUB_DISABLE_SYMLINKS_WARNING",
    "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_UPDATE_CHECK", "HF_HUB_DISABLE_XET",
    "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ENABLE_HF_TRANSFER", "HF_HUB_ETAG_TIMEOUT",
    "HF_HUB_OFFLINE", "HF_HUB_USER_AGENT_ORIGIN", "HF_HUB_VERBOSITY", "HF_INFERENCE_ENDPOINT",
    "HF_MODULES_CACHE", "HF_OIDC_ID_TOKEN", "HF_OIDC_RESOURCE", "HF_STORED_TOKENS_PATH",
    "HF_TOKEN_PATH",
})  # fmt: skip

# Flags of the engine's command line that are no arguments, as variables.
NOT_HERE: Mapping[str, str] = {
    flag.replace("-", "_").upper(): extra_args.NOT_HERE[flag]
    for flag in ("headless", "grpc", "api-server-count")
}


def warnings(given: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    """One line for each variable that is nearly a known one."""
    for name in given:
        if name in known or name in LEGACY:
            continue
        if name in NOT_HERE:
            yield f"{name} has no effect: {NOT_HERE[name]}"
            continue
        near = nearest(name, known)
        if near:
            yield f"{name} is not a variable of this worker and is ignored; did you mean {near}?"


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known variable that a name was probably meant to be, or None."""
    if name.upper() in known:
        return name.upper()
    if len(name) < SHORTEST or name.startswith(FOREIGN):
        return None
    candidates = known
    if name.startswith("VLLM_"):
        of_engine = catalog.load().engine_environment
        if name in of_engine:
            return None
        if name.removeprefix("VLLM_") in known:
            return name.removeprefix("VLLM_")
        candidates = {*of_engine, *(word for word in known if word.startswith("VLLM_"))}
    if name.startswith("HF_"):
        if name in OF_HUGGING_FACE:
            return None
        candidates = {*OF_HUGGING_FACE, *(word for word in known if word.startswith("HF_"))}
    ours = name.startswith(OUR_FAMILIES)
    cutoff = LIKENESS_OF_OUR_FAMILIES if ours else LIKENESS
    found = get_close_matches(name.upper(), candidates, n=1, cutoff=cutoff)
    return found[0] if found else None
