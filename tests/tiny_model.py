"""A random two-layer Llama with the embedded model's tokenizer, for tests that need no language.

It loads in a second and its answers mean nothing, but they are the same each time: random
weights from a fixed seed.
"""

import hashlib
import json
from pathlib import Path

from worker import embedded_model

RECIPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,  # the smallest that vLLM's CPU attention has
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,  # wide, so that the best token is clear of the second
}
SEED = 0


def make_tiny_model(folder: Path, say: embedded_model.Say = print) -> Path:
    """Make the model under `folder`, unless an earlier run has; gives its own folder there.

    About 10 s, 16 MB. Its name tells its recipe, so a change of recipe makes another.
    """
    tokenizer = embedded_model.prepare(say)
    recipe = json.dumps([RECIPE, SEED, embedded_model.RECIPE], sort_keys=True)
    key = hashlib.sha256(recipe.encode()).hexdigest()[:12]

    def make(empty: Path) -> None:
        embedded_model.run_in_child("tests.tiny_model:build", tokenizer, empty)

    return embedded_model.make_once(folder / f"tiny-llama-{key}", make, say)


def build(tokenizer_folder: Path, folder: Path) -> None:
    """Write the model; imports torch, so it runs in a child."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **RECIPE,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
