"""Variables that are nearly ours are told; everybody else's are left alone."""

import re
import time
from pathlib import Path

import pytest

import env_schema
from worker import catalog, extra_args, legacy, unknown

KNOWN = env_schema.known_variables()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MAX_MODEL_LENGTH", "MAX_MODEL_LEN"),
        ("NGRAM_LOOKUP_MAX", "NGRAM_PROMPT_LOOKUP_MAX"),
        ("NGRAM_LOOKUP_MIN", "NGRAM_PROMPT_LOOKUP_MIN"),
        ("SPECULATIVE_TOKENS", "NUM_SPECULATIVE_TOKENS"),
        ("NUM_SPECULATIVE_TOKEN", "NUM_SPECULATIVE_TOKENS"),
        ("SPECULATIV_MODEL", "SPECULATIVE_MODEL"),
        ("SPECULATIVE_DRAFT_MODEL", "SPECULATIVE_MODEL"),
        ("SPECULATIVE_DISABLE_BY_BATCHSIZE", "SPECULATIVE_DISABLE_BY_BATCH_SIZE"),
        ("SPEC_DECODING_ACCEPTANCE_METHODS", "SPEC_DECODING_ACCEPTANCE_METHOD"),
        ("TYPICAL_ACCEPTANCE_POSTERIOR_ALPHA", "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA"),
        ("MODELNAME", "MODEL_NAME"),
        ("MODEL_NAMES", "MODEL_NAME"),
        ("TOKENIZER_NAMES", "TOKENIZER_NAME"),
        ("MAX_NUM_SEQ", "MAX_NUM_SEQS"),
        ("MAX_CONCURENCY", "MAX_CONCURRENCY"),
        ("TENSOR_PARALELL_SIZE", "TENSOR_PARALLEL_SIZE"),
        ("TENSOR_PARALLEL", "TENSOR_PARALLEL_SIZE"),
        ("GPU_MEMORY_UTILISATION", "GPU_MEMORY_UTILIZATION"),
        ("TRUST_REMOTECODE", "TRUST_REMOTE_CODE"),
        ("DEFAULT_BATCHSIZE", "DEFAULT_BATCH_SIZE"),
        ("model_name", "MODEL_NAME"),
        ("Max_Model_Len", "MAX_MODEL_LEN"),
        ("hf_token", "HF_TOKEN"),
        ("HF_TOKN", "HF_TOKEN"),
        ("HF_TOKENS", "HF_TOKEN"),
        ("HF_OVERRIDE", "HF_OVERRIDES"),
        ("HF_HUB_OFLINE", "HF_HUB_OFFLINE"),
        ("HUGGINGFACE_TOKEN", "HF_TOKEN"),
        ("HUGGINGFACEHUB_API_TOKEN", "HF_TOKEN"),
        ("VLLM_EXTRA_ARG", "VLLM_EXTRA_ARGS"),
        ("VLLM_CONFIG_FILES", "VLLM_CONFIG_FILE"),
        ("VLLM_LOGING_LEVEL", "VLLM_LOGGING_LEVEL"),
        ("VLLM_MAX_MODEL_LEN", "MAX_MODEL_LEN"),
        ("VLLM_GPU_MEMORY_UTILIZATION", "GPU_MEMORY_UTILIZATION"),
    ],
)
def test_a_nearly_right_name_is_told_with_the_right_one(name: str, meant: str) -> None:
    assert name in legacy.LEGACY or unknown.nearest(name, KNOWN) == meant
    (warning,) = env_schema.load({name: "8"}).warnings  # from here, or as an old name
    assert warning.startswith(name)
    assert meant in warning


def test_a_warning_says_that_the_variable_is_ignored() -> None:
    assert list(unknown.warnings({"MODEL_NAMES": "x"}, KNOWN)) == [
        "MODEL_NAMES is not a variable of this worker and is ignored; did you mean MODEL_NAME?"
    ]


@pytest.mark.parametrize("name", ["API_SERVER_COUNT", "HEADLESS", "GRPC"])
def test_a_flag_that_is_not_for_a_worker_is_told_with_its_reason(name: str) -> None:
    (warning,) = env_schema.load({name: "1"}).warnings
    reason = extra_args.NOT_HERE[name.lower().replace("_", "-")]
    assert warning == f"{name} has no effect: {reason}"


@pytest.mark.parametrize("name", sorted(unknown.OF_HUGGING_FACE))
def test_what_hugging_faces_libraries_read_is_left_to_them(name: str) -> None:
    assert unknown.nearest(name, KNOWN) is None


def test_each_setting_of_the_hubs_client_is_known() -> None:
    from huggingface_hub import constants

    text = Path(constants.__file__).read_text()
    read = set(re.findall(r"""["'](HF_[A-Z_]+)["']""", text))
    assert "HF_HUB_OFFLINE" in read
    assert {name for name in read if unknown.nearest(name, KNOWN) not in (None, name)} == set()


CONTAINER = """
    PATH HOME HOSTNAME PWD OLDPWD SHLVL TERM SHELL USER LOGNAME LANG LC_ALL LANGUAGE TZ _ PS1
    DEBIAN_FRONTEND LD_LIBRARY_PATH LIBRARY_PATH LD_PRELOAD PYTHONUNBUFFERED PYTHONPATH
    PYTHON_VERSION PYTHONDONTWRITEBYTECODE PIP_NO_CACHE_DIR VIRTUAL_ENV UV_HTTP_TIMEOUT
    UV_INDEX_STRATEGY UV_LINK_MODE CC CXX MAX_JOBS NVCC_THREADS
    NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES NVIDIA_REQUIRE_CUDA
    NVIDIA_PRODUCT_NAME NVARCH NV_CUDA_CUDART_VERSION NV_CUDA_COMPAT_PACKAGE CUDA_VERSION
    CUDA_VISIBLE_DEVICES CUDA_HOME CUDA_DEVICE_ORDER NCCL_DEBUG NCCL_P2P_DISABLE NCCL_VERSION
    TORCH_CUDA_ARCH_LIST PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF TRITON_CACHE_DIR
    OMP_NUM_THREADS MKL_NUM_THREADS KMP_WARNINGS TOKENIZERS_PARALLELISM TRANSFORMERS_OFFLINE
    HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE HF_HUB_OFFLINE
    HF_XET_HIGH_PERFORMANCE HUGGINGFACE_HUB_CACHE
    VLLM_USAGE_SOURCE VLLM_LOGGING_LEVEL VLLM_WORKER_MULTIPROC_METHOD
    VLLM_CACHE_ROOT VLLM_USE_V1 VLLM_CPU_OMP_THREADS_BIND VLLM_TARGET_DEVICE
    RUNPOD_POD_ID RUNPOD_POD_HOSTNAME RUNPOD_ENDPOINT_ID RUNPOD_API_KEY RUNPOD_AI_API_KEY
    RUNPOD_WEBHOOK_GET_JOB RUNPOD_WEBHOOK_POST_OUTPUT RUNPOD_WEBHOOK_POST_STREAM
    RUNPOD_WEBHOOK_PING RUNPOD_PING_INTERVAL RUNPOD_GPU_COUNT RUNPOD_GPU_SIZE RUNPOD_CPU_COUNT
    RUNPOD_MEM_GB RUNPOD_DC_ID RUNPOD_DEBUG_LEVEL RUNPOD_LOG_LEVEL RUNPOD_PUBLIC_IP
    RUNPOD_TCP_PORT_22 RUNPOD_VOLUME_ID RUNPOD_INIT_TIMEOUT RUNPOD_REALTIME_PORT PUBLIC_KEY
    KUBERNETES_SERVICE_HOST KUBERNETES_SERVICE_PORT KUBERNETES_SERVICE_PORT_HTTPS
    KUBERNETES_PORT KUBERNETES_PORT_443_TCP KUBERNETES_PORT_443_TCP_ADDR NODE_NAME POD_NAME
    POD_NAMESPACE POD_IP HOST_IP AWS_REGION AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
    SSH_CONNECTION SSH_CLIENT SSH_TTY SSH_AUTH_SOCK GIT_COMMIT GIT_BRANCH GITHUB_SHA
    GITHUB_TOKEN CI JUPYTER_PASSWORD JUPYTER_TOKEN http_proxy https_proxy no_proxy HTTP_PROXY
    HTTPS_PROXY NO_PROXY SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE XDG_CACHE_HOME
    XDG_RUNTIME_DIR WORLD_SIZE LOCAL_RANK RANK GLOO_SOCKET_IFNAME WANDB_API_KEY OPENAI_API_KEY
    SENTRY_DSN MALLOC_ARENA_MAX INVOCATION_ID JOURNAL_STREAM LESSOPEN MOTD_SHOWN EDITOR PAGER
    npm_config_cache MY_FEATURE DEBUG APP_ENV ENVIRONMENT VERSION BUILD_DATE WORKSPACE
"""


@pytest.mark.parametrize("name", CONTAINER.split())
def test_a_variable_of_the_container_is_nobodys_business(name: str) -> None:
    assert unknown.nearest(name, KNOWN) is None


def test_a_whole_container_gives_no_warning_and_takes_no_time() -> None:
    environ = dict.fromkeys(CONTAINER.split(), "some value")
    catalog.load()
    started = time.process_time()
    read = env_schema.load({**environ, "MODEL_NAME": "org/model"})
    assert read.warnings == ()
    assert read.sources == {"model_name": "MODEL_NAME"}
    assert time.process_time() - started < 1


@pytest.mark.parametrize("name", sorted(catalog.load().engine_environment))
def test_a_variable_that_the_engine_reads_itself_is_left_to_it(name: str) -> None:
    assert name in KNOWN or not name.startswith("VLLM_") or unknown.nearest(name, KNOWN) is None


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_known_variable_is_not_warned_of(name: str) -> None:
    assert list(unknown.warnings({name: "x"}, KNOWN)) == []


def test_an_old_name_is_told_once_and_not_as_a_misspelling() -> None:
    for name in legacy.LEGACY:
        assert list(unknown.warnings({name: "x"}, KNOWN)) == []


@pytest.mark.parametrize(
    "name", ["", "_", "é漢字éé", "X" * 100_000, "MAX MODEL LEN=", "\udcff\udcff"]
)
def test_an_odd_name_is_no_trouble(name: str) -> None:
    assert unknown.nearest(name, KNOWN) in (None, "MAX_MODEL_LEN")
