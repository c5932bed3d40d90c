"""Each drafting method on the real engine: greedy answers are those without speculation.

One engine for each method, in a process of its own, with tiny models of `drafts`.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from drafts import DRAFTED, REPEATER, TARGET, make_drafts

from worker import embedded_model, process_setup

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[1]
LENGTH = 32  # tokens of an answer
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{3,8}$"},
        "age": {"type": "integer", "minimum": 10, "maximum": 99},
        "kind": {"enum": ["whale", "quokka", "axolotl"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.8, "repetition_penalty": 1.3}

# Prompt and sampling parameters; all are greedy. What is empty is filled from the answer.
REQUESTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "plain": ("Once upon a time", {"ignore_eos": True}),
    "long": ("The first rule of the kitchen is to keep it clean. " * 8, {"ignore_eos": True}),
    "logprobs": ("In the year 2031 a small boat", {"ignore_eos": True, "logprobs": 3}),
    "prompt logprobs": ("Two and two", {"ignore_eos": True, "prompt_logprobs": 2, "logprobs": 0}),
    "stop string": ("Count: one, two,", {"stop": [], "min_tokens": 10}),
    "schema": ("An animal as JSON:", {"max_tokens": 64, "structured_outputs": {"json": SCHEMA}}),
    "penalties": ("A list: a, a, a, a,", {"ignore_eos": True, **PENALTIES}),
    "bad words": ("def add(a, b):\n    return", {"ignore_eos": True, "bad_words": []}),
}
UNHURT = ("plain", "long", "logprobs", "prompt logprobs")  # what nothing but the target decides

# The target, the method, and what the engine's speculative config gets.
METHODS: Mapping[str, tuple[str, Mapping[str, Any] | None]] = {
    "none": (TARGET, None),
    "draft_model, one layer": (TARGET, {"method": "draft_model", "model": "one-layer"}),
    "draft_model, itself": (TARGET, {"method": "draft_model", "model": TARGET}),
    "eagle": (TARGET, {"method": "eagle", "model": "feature-head"}),
    "eagle3": (TARGET, {"method": "eagle3", "model": "three-layer-feature-head"}),
    "medusa": (TARGET, {"method": "medusa", "model": "parallel-heads"}),
    "none, repeating": (REPEATER, None),
    "ngram": (REPEATER, {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
    "suffix": (REPEATER, {"method": "suffix"}),
    "mlp_speculator, by state": (REPEATER, {"model": "chained-heads"}),
    "mlp_speculator, by token": (REPEATER, {"model": "tied-chained-heads"}),
}
BASELINES = {TARGET: "none", REPEATER: "none, repeating"}
SPECULATIVE = [name for name, (_, config) in METHODS.items() if config is not None]
NO_SUFFIX = "arctic_inference is not installed, which the suffix method drafts with"


def serve(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Start an engine and answer all requests, alone and at once; runs in a child."""
    from worker import launch

    began = time.monotonic()
    spoken = launch.namespace(arguments)
    client = launch.start(spoken, launch.engine_config(spoken))
    booted = time.monotonic() - began
    try:
        return {"boot_s": booted, **asyncio.run(_answer_all(client))}
    finally:
        client.shutdown(timeout=15.0)


async def _answer_all(client: Any) -> dict[str, Any]:
    ask = partial(_answer, client)
    await ask("warm", "Warm up", {"max_tokens": 8, "ignore_eos": True})
    requests = {name: await _filled(ask, *request) for name, request in REQUESTS.items()}
    began = time.monotonic()
    alone = {name: await ask(name, *request) for name, request in requests.items()}
    alone_s = time.monotonic() - began
    began = time.monotonic()
    answers = await asyncio.gather(*(ask(name, *request) for name, request in requests.items()))
    at_once_s = time.monotonic() - began
    at_once = dict(zip(requests, answers, strict=True))
    return {
        "alone": alone,
        "at once": at_once,
        "alone, tokens/s": _tokens(alone) / alone_s,
        "at once, tokens/s": _tokens(at_once) / at_once_s,
    }


async def _filled(ask: Any, prompt: str, more: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The request with a stop string and a bad word that its answer has in the middle."""
    if not {"stop", "bad_words"} & more.keys():
        return prompt, more
    text = (await ask("unfilled", prompt, {"ignore_eos": True}))["text"]
    middle = text[len(text) // 2 :]
    found = {"stop": [middle[:2]], "bad_words": middle.split()[1:2]}
    return prompt, {**more, **{key: found[key] for key in found.keys() & more.keys()}}


def _tokens(answers: Mapping[str, Any]) -> int:
    return sum(len(answer["tokens"]) for answer in answers.values())


async def _answer(client: Any, name: str, prompt: str, more: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if "structured_outputs" in more:
        more = {**more, "structured_outputs": StructuredOutputsParams(**more["structured_outputs"])}
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": LENGTH, **more})
    (rendered,) = await client.renderer.render_cmpl_async([{"prompt": prompt}])
    async for output in client.generate(rendered, sampling, f"{name}-{time.monotonic_ns()}"):
        last = output
    (end,) = last.outputs
    figures = end.spec_decode_metrics
    return {
        "text": end.text,
        "tokens": list(end.token_ids),
        "reason": [end.finish_reason, end.stop_reason],
        "logprobs": [_by_token(place) for place in end.logprobs or []],
        "prompt logprobs": [_by_token(place) for place in last.prompt_logprobs or []],
        "figures": figures.to_dict() if figures else None,
    }


def _by_token(place: Any) -> dict[str, float]:
    return {str(token): value.logprob for token, value in (place or {}).items()}


def run(models: Mapping[str, Path], name: str) -> dict[str, Any]:
    """The child's answers for one method, and how long it took in all."""
    target, config = METHODS[name]
    arguments: dict[str, Any] = {
        "model": str(models[target]),
        "dtype": "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 256 * 2**20,
        "max_model_len": 512,
        "max_num_seqs": 8,
        # a random model would go on with white space for ever
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }
    if config is not None:
        draft = {"model": str(models[config["model"]])} if "model" in config else {}
        count = {} if config.get("method") == "suffix" else {"num_speculative_tokens": DRAFTED}
        arguments["speculative_config"] = {**count, **config, **draft}
        arguments["per_request_spec_decode_metrics"] = "detailed"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        check=False,
        env=_environment(),
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**answers, "all_s": time.monotonic() - began}


def _environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **process_setup.openmp_environment(os.environ),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }


class Runs:
    """What each method answered; every one runs once, when it is first asked for."""

    def __init__(self) -> None:
        self._models = make_drafts(embedded_model.cache_folder())
        self._failed: set[str] = set()
        self.done: dict[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name == "suffix" and find_spec("arctic_inference") is None:
            pytest.skip(NO_SUFFIX)
        if name in self._failed:
            pytest.fail(f"the engine of {name} failed, as an earlier test tells")
        if name not in self.done:
            self._failed.add(name)
            self.done[name] = run(self._models, name)
            self._failed.remove(name)
        return self.done[name]

    def exact(self, name: str) -> dict[str, Any]:
        """The same target's answers without speculation."""
        return self[BASELINES[METHODS[name][0]]]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """All runs, and at their end a table of what they took."""
    kept = Runs()
    yield kept
    print(
        f"\n{'method':26} {'alone':>8} {'at once':>8} tokens/s  {'boot':>5} {'all':>5} s  accepted"
    )
    for name, result in kept.done.items():
        print(
            f"{name:26} {result['alone, tokens/s']:8.1f} {result['at once, tokens/s']:8.1f}"
            f"           {result['boot_s']:5.1f} {result['all_s']:5.1f}    {shown(result)}"
        )


def shown(result: Mapping[str, Any]) -> str:
    """Accepted of drafted tokens over all requests, and over those that are plain."""
    if result["alone"]["plain"]["figures"] is None and not accepted(result, REQUESTS)[1]:
        return "-"
    return " · ".join("{}/{}".format(*accepted(result, names)) for names in (REQUESTS, UNHURT))


def accepted(result: Mapping[str, Any], names: Any) -> tuple[int, int]:
    """Accepted and drafted tokens of these requests, alone and at once together."""
    figures = [result[way][name]["figures"] for way in ("alone", "at once") for name in names]
    return (
        sum(f["num_accepted_draft_tokens"] for f in figures if f),
        sum(f["num_draft_tokens"] for f in figures if f),
    )


@pytest.mark.parametrize("way", ["alone", "at once"])
@pytest.mark.parametrize("method", SPECULATIVE)
def test_the_answers_are_those_without_speculation(runs: Runs, method: str, way: str) -> None:
    answers, exact = runs[method][way], runs.exact(method)[way]
    for name in REQUESTS:
        for part in ("tokens", "text", "reason"):
            assert answers[name][part] == exact[name][part], (name, part)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_the_logprobs_are_those_without_speculation(runs: Runs, method: str) -> None:
    for way in ("alone", "at once"):
        for name in ("logprobs", "prompt logprobs"):
            for part in ("logprobs", "prompt logprobs"):
                ours, theirs = runs[method][way][name][part], runs.exact(method)[way][name][part]
                assert len(ours) == len(theirs)
                for place, expected in zip(ours, theirs, strict=True):
                    assert place == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", ["none", "none, repeating"])
def test_the_requests_do_what_they_are_for(runs: Runs, name: str) -> None:
    for way in ("alone", "at once"):
        answers = runs[name][way]
        assert len(answers["plain"]["tokens"]) == LENGTH
        assert len(answers["logprobs"]["logprobs"]) == LENGTH
        assert answers["prompt logprobs"]["prompt logprobs"][1:]
        assert answers["stop string"]["reason"][0] == "stop"
        assert 10 <= len(answers["stop string"]["tokens"]) < LENGTH
        assert sorted(json.loads(answers["schema"]["text"])) == ["age", "kind", "name"]


RANDOM = ["draft_model, one layer", "eagle", "eagle3", "medusa"]


@pytest.mark.parametrize("method", RANDOM)
def test_random_drafts_are_made_and_turned_down(runs: Runs, method: str) -> None:
    right, made = accepted(runs[method], UNHURT)
    assert made > 2 * len(UNHURT) * LENGTH
    assert right < 0.05 * made


# The least share of drafts that is accepted where nothing but the target decides.
GOOD = {
    "draft_model, itself": 0.9,
    "ngram": 0.9,
    "suffix": 0.9,
    "mlp_speculator, by state": 0.5,
    "mlp_speculator, by token": 0.9,
}


@pytest.mark.parametrize("method", GOOD)
def test_good_drafts_are_accepted_and_take_fewer_steps(runs: Runs, method: str) -> None:
    right, made = accepted(runs[method], UNHURT)
    assert made > 0
    assert right > GOOD[method] * made
    for name in UNHURT:
        figures = runs[method]["alone"][name]["figures"]
        steps_without = LENGTH - figures["num_accepted_draft_tokens"]
        assert steps_without < LENGTH / 2


def test_a_method_of_heads_is_read_from_their_config(runs: Runs) -> None:
    """No method is given for the MLP-speculator heads, and drafts are made."""
    assert accepted(runs["mlp_speculator, by state"], REQUESTS)[1] > 0


def main() -> None:
    """The child: arguments on standard input, answers as the last line of standard output."""
    answers = serve(json.loads(sys.stdin.read()))
    print("\n" + json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
