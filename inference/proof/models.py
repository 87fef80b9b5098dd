"""Create tiny Qwen3 models with random weights, and a tokenizer trained on Python's standard library, without downloads.

Random weights are a harder test than trained ones, because their logits lie close together.
"""

import sysconfig
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY = 4096


def create_model(root: Path, kind: str, ratio: int) -> Path:
    """Create a model of this kind (dense, moe or uneven) with `ratio` heads per KV head, unless it exists."""
    place = root / f"{kind}-{ratio}"
    if not (place / "config.json").exists():
        torch.manual_seed(0)
        model = _model(kind, heads=9 if ratio == 3 else 8, ratio=ratio)
        _tokenizer().save_pretrained(place)
        model.to(torch.float32).save_pretrained(place)
    return place


def _model(kind: str, *, heads: int, ratio: int) -> Any:
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // ratio,
        "head_dim": 64,
        "intermediate_size": 512,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
        "initializer_range": 0.1,
    }
    if kind == "uneven":
        # 1,000 is not a multiple of a vector instruction's width, and torch divides 33 rows of it among threads.
        common |= {"intermediate_size": 1000, "num_hidden_layers": 1}
    if kind != "moe":
        return Qwen3ForCausalLM(Qwen3Config(**common))
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**common, moe_intermediate_size=128, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True)
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:40]
    tokenizer.train_from_iterator((file.read_text("utf-8", "ignore") for file in library), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")  # noqa: S106 # no password
