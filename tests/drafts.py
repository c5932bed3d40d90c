"""Tiny targets and a draft of each kind for them, for tests of speculative decoding.

`TARGET` is random: its best token is so close to the second that an error would show, and
drafts with random weights are right by chance alone. `REPEATER` says the same six tokens
over and over, so that drafts are accepted. The folders' names say nothing of a method: the
engine would read it from them.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests import tiny_model
from worker import embedded_model

DRAFTED = 3  # tokens in a step
LAYERS = 8  # fewer, and the three layers that EAGLE-3 reads are not three
TARGET, REPEATER = "target", "repeater"
PERIOD = 6  # tokens until the repeater repeats itself; divides the vocabulary
RECIPE = 1  # one more whenever a maker writes something else


def make_drafts(folder: Path, say: embedded_model.Say = print) -> Mapping[str, Path]:
    """The targets and their drafts by name, made under `folder` where they are not yet.

    About 20 s, 230 MB.
    """
    paths = {name: _path(folder, name) for name in (TARGET, REPEATER, *MAKERS)}
    if not all(path.is_dir() for path in paths.values()):
        tokenizer = embedded_model.prepare(say)
        say("Making tiny targets and drafts: about 20 s, once")
        embedded_model.run_in_child("tests.drafts:build_all", tokenizer, folder)
    return paths


def _path(folder: Path, name: str) -> Path:
    recipe = [tiny_model.RECIPE, LAYERS, DRAFTED, PERIOD, RECIPE]
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:8]
    return folder / f"tiny-set-{key}-{name}"


def build_all(tokenizer_folder: Path, folder: Path) -> None:
    """Write the targets and each draft; imports torch, so it runs in a child."""
    embedded_model.make_once(
        _path(folder, TARGET), lambda empty: _llama(tokenizer_folder, empty, LAYERS, 0)
    )
    embedded_model.make_once(
        _path(folder, REPEATER), lambda empty: _repeater(tokenizer_folder, empty, 0)
    )
    for seed, (name, (target, make)) in enumerate(MAKERS.items(), start=1):
        make_it = partial(make, _path(folder, target), seed)
        embedded_model.make_once(_path(folder, name), make_it)


def _llama(tokenizer_folder: Path, folder: Path, layers: int, seed: int) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    torch.manual_seed(seed)
    LlamaForCausalLM(_llama_config(tokenizer, num_hidden_layers=layers)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _llama_config(tokenizer: Any, **more: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **{**tiny_model.RECIPE, **more},
    )


def _repeater(tokenizer_folder: Path, folder: Path, seed: int) -> None:
    """A random model whose output weights vote for the next token of a circle."""
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(_llama_config(tokenizer, tie_word_embeddings=False))
    with torch.no_grad():
        tokens = torch.nn.functional.normalize(torch.randn(model.lm_head.weight.shape), dim=-1)
        model.model.embed_tokens.weight.copy_(150 * tokens)  # over the noise of the layers
        model.lm_head.weight[_following(torch.arange(len(tokens)))] = tokens
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _following(tokens: Any) -> Any:
    """What the repeater says after each of these tokens."""
    return tokens - tokens % PERIOD + (tokens + 1) % PERIOD


def _one_layer_llama(target: Path, seed: int, folder: Path) -> None:
    _llama(target, folder, 1, seed)


class Weights:
    """Random tensors by name, in the sizes of the target."""

    def __init__(self, target: Path, seed: int) -> None:
        import torch

        self._random = torch.Generator().manual_seed(seed)
        self._ones = torch.ones
        self._randn = torch.randn
        self.config: dict[str, Any] = json.loads((target / "config.json").read_text())
        self.vocabulary: int = self.config["vocab_size"]
        self.hidden: int = self.config["hidden_size"]
        self.tensors: dict[str, Any] = {}

    def add(self, name: str, *shape: int) -> None:
        """One random tensor; of one dimension, a norm's weights: ones."""
        random = 0.2 * self._randn(shape, generator=self._random)
        self.tensors[name] = random if len(shape) > 1 else self._ones(shape)

    def add_layer(self, prefix: str, attention_input: int) -> None:
        """A Llama layer without its input norm, in the sizes of the target."""
        queries = self.config["num_attention_heads"] * self.config["head_dim"]
        keys = self.config["num_key_value_heads"] * self.config["head_dim"]
        wide = self.config["intermediate_size"]
        for name, *shape in (
            ("self_attn.q_proj", queries, attention_input),
            ("self_attn.k_proj", keys, attention_input),
            ("self_attn.v_proj", keys, attention_input),
            ("self_attn.o_proj", self.hidden, queries),
            ("mlp.gate_proj", wide, self.hidden),
            ("mlp.up_proj", wide, self.hidden),
            ("mlp.down_proj", self.hidden, wide),
            ("post_attention_layernorm", self.hidden),
        ):
            self.add(f"{prefix}.{name}.weight", *shape)

    def save(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Write the checkpoint: tensors and config."""
        from safetensors.torch import save_file

        save_file(self.tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config, indent=2))


def _feature_head(target: Path, seed: int, folder: Path) -> None:
    """EAGLE: one layer over the last token's embedding and the target's state."""
    weights = Weights(target, seed)
    weights.add("fc.weight", weights.hidden, 2 * weights.hidden)
    weights.add_layer("layers.0", weights.hidden)
    weights.save(folder, {**weights.config, "num_hidden_layers": 1})


def _three_layer_feature_head(target: Path, seed: int, folder: Path) -> None:
    """EAGLE-3: one layer over three of the target's, and a small vocabulary of its own."""
    import torch

    weights, small = Weights(target, seed), 1024
    weights.add("fc.weight", weights.hidden, 3 * weights.hidden)
    weights.add_layer("midlayer", 2 * weights.hidden)
    for norm in ("midlayer.input_layernorm", "midlayer.hidden_norm", "norm"):
        weights.add(f"{norm}.weight", weights.hidden)
    weights.add("lm_head.weight", small, weights.hidden)
    weights.tensors["d2t"] = 40 * torch.arange(small)  # draft token n is the target's 41 n
    own = {"num_hidden_layers": 1, "draft_vocab_size": small, "tie_word_embeddings": False}
    weights.save(folder, {**weights.config, **own})


def _parallel_heads(target: Path, seed: int, folder: Path) -> None:
    """Medusa: heads beside each other over the target's state."""
    weights = Weights(target, seed)
    for head in range(DRAFTED):
        weights.add(f"blocks.{head}.layers.0.weight", weights.hidden, weights.hidden)
        weights.add(f"lm_heads.{head}.weight", weights.vocabulary, weights.hidden)
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": weights.hidden,
        "vocab_size": weights.vocabulary,
        "num_heads": DRAFTED,
        "num_hidden_layers": 1,
    }
    weights.save(folder, config)


def _chained_heads_config(weights: Weights, inner: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "mlp_speculator",
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "vocab_size": weights.vocabulary,
        "emb_dim": weights.hidden,
        "inner_dim": inner,
        "n_predict": DRAFTED,
        "top_k_tokens_per_head": [1] * DRAFTED,
        "n_candidates": 1,
        **more,
    }


def _chained_heads(target: Path, seed: int, folder: Path) -> None:
    """MLP speculator: heads with weights of their own, taught by the state that they start from.

    They ignore the last token: its embedding is zero. Each head votes for what the target
    says that many tokens on.
    """
    import torch

    weights, random = Weights(target, seed), torch.Generator().manual_seed(seed)
    inner = weights.hidden
    state = _embedding(target)  # what the target's state is like, where a token was read
    following = _following(torch.arange(weights.vocabulary))
    for head in range(DRAFTED):
        following = _following(following)  # the first token to follow is known already
        turn = torch.nn.init.orthogonal_(torch.empty(inner, inner), generator=random)
        weights.tensors[f"speculator.proj.{head}.weight"] = turn
        state = _normed_gelu(state @ turn.T)
        votes = torch.zeros(weights.vocabulary, inner)
        votes[following] = state - state.mean(0)
        weights.tensors[f"speculator.head.{head}.weight"] = votes
        weights.tensors[f"speculator.emb.{head}.weight"] = torch.zeros_like(votes)
        weights.add(f"speculator.ln.{head}.weight", inner)
        weights.tensors[f"speculator.ln.{head}.bias"] = torch.zeros(inner)
    weights.save(folder, _chained_heads_config(weights, inner))


def _tied_chained_heads(target: Path, seed: int, folder: Path) -> None:
    """MLP speculator with tied weights, each stored once, taught by the last token alone."""
    import torch

    weights, inner = Weights(target, seed), 64
    tokens = torch.randn(weights.vocabulary, inner, generator=torch.Generator().manual_seed(seed))
    states, votes = _normed_gelu(tokens), torch.zeros_like(tokens)
    votes[_following(torch.arange(weights.vocabulary))] = states - states.mean(0)
    weights.add("speculator.ln.0.weight", inner)
    weights.tensors |= {
        "speculator.emb.0.weight": tokens,
        "speculator.head.0.weight": votes,
        "speculator.proj.0.weight": torch.zeros(inner, weights.hidden),
        "speculator.proj.1.weight": torch.zeros(inner, inner),
        "speculator.ln.0.bias": torch.zeros(inner),
    }
    weights.save(folder, _chained_heads_config(weights, inner, tie_weights=True, scale_input=True))


def _embedding(model: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(model / "model.safetensors")["model.embed_tokens.weight"]


def _normed_gelu(state: Any) -> Any:
    import torch
    from torch.nn.functional import gelu

    return gelu(state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True)))


# Each with the model that it drafts for.
MAKERS: Mapping[str, tuple[str, Callable[[Path, int, Path], None]]] = {
    "one-layer": (TARGET, _one_layer_llama),
    "feature-head": (TARGET, _feature_head),
    "three-layer-feature-head": (TARGET, _three_layer_feature_head),
    "parallel-heads": (TARGET, _parallel_heads),
    "chained-heads": (REPEATER, _chained_heads),
    "tied-chained-heads": (REPEATER, _tied_chained_heads),
}
