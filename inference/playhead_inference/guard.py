"""Refuse untested configurations at start, because a claim may cover only what was checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from playhead_inference.tiles import ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A configuration of vLLM as plain values."""

    device: str
    """cpu or cuda"""
    dtype: str
    heads: int
    kv_heads: int
    attention: str | None
    """The configured attention backend."""
    eager: bool
    mode: bool
    """VLLM_BATCH_INVARIANT"""
    moe: bool
    prefix_caching: bool
    features: Mapping[str, bool]
    """Which of the features in UNTESTED are enabled."""


UNTESTED: Final = {
    "speculation": "speculative decoding",
    "lora": "LoRA",
    "quantization": "quantized weights",
    "quantized_cache": "a quantized KV cache",
    "mla": "multi-head latent attention",
    "window": "sliding-window attention",
    "state": "Mamba, GDN and other models with a state besides the KV cache",
    "multimodal": "models that take images or sound",
    "encoder": "encoder-decoder models",
    "pooling": "pooling and embedding models",
    "tensor_parallel": "tensor parallelism",
    "pipeline_parallel": "pipeline parallelism",
    "data_parallel": "data parallelism",
    "context_parallel": "context parallelism",
    "expert_parallel": "expert parallelism",
    "kv_transfer": "KV transfer between servers",
    "runner": "vLLM's second model runner on a CPU",
    "extension": "another plugin's worker extension",
    "worker": "another worker class (--worker-cls)",
    "executor": "another executor (--distributed-executor-backend)",
    "scheduler": "another scheduler class (--scheduler-cls)",
    "logits_processors": "custom logits processors",
    "kv_offloading": "an offloaded KV cache (--kv-offloading-size)",
    "cpu_offload": "weights offloaded to CPU memory",
    "ec_transfer": "transfer of encoder caches",
    "weight_transfer": "weights that are replaced while it runs",
    "watermark": "watermarked answers",
    "diffusion": "diffusion models",
    "prompt_embeds": "embeddings in place of prompts",
    "processed_logprobs": "a --logprobs-mode other than raw_logprobs",
    "load_format": "a --load-format other than auto, hf, safetensors and pt",
    "implementation": "a --model-impl other than vllm",
    "sleep": "sleep mode",
    "additional": "--additional-config",
    "kernels": "a choice of linear or expert kernels",
    "remote_code": "code that comes with a model (--trust-remote-code)",
    "plugins": "another plugin of vLLM that VLLM_PLUGINS names",
    "development": "VLLM_SERVER_DEV_MODE, which opens the worker to everyone",
}


def refusals(facts: Facts) -> tuple[str, ...]:
    """The reasons to refuse this configuration; empty if the self-check may run."""
    untested = tuple(f"{words} was not tested" for name, words in UNTESTED.items() if facts.features.get(name))
    return untested + (_cpu_refusals(facts) if facts.device == "cpu" else _gpu_refusals(facts))


_COMPILED: Final = "torch.compile and CUDA graphs hide executed operations from the self-check; use --enforce-eager"


def _cpu_refusals(facts: Facts) -> tuple[str, ...]:
    rules = {
        "VLLM_BATCH_INVARIANT must be unset on a CPU: vLLM's own mode fails there on the first forward pass": facts.mode,
        f"{facts.dtype} was not tested on a CPU; use --dtype float32": facts.dtype != "float32",
        f"the attention backend {facts.attention} was not tested on a CPU; leave --attention-backend out": (
            facts.attention not in (None, "CPU_ATTN")
        ),
        _COMPILED: not facts.eager,
        f"{facts.heads} heads over {facts.kv_heads} KV heads do not fit the kernel's {ROWS} rows": (
            facts.heads > ROWS * facts.kv_heads
        ),
    }
    return tuple(reason for reason, holds in rules.items() if holds)


def _gpu_refusals(facts: Facts) -> tuple[str, ...]:
    rules = {
        "VLLM_BATCH_INVARIANT=1 must be set before vLLM is imported; start it with `playhead inference up`": (
            not facts.mode
        ),
        _COMPILED: not facts.eager,
        # vllm-project/vllm#51902: FlashAttention 3 chooses its tiles by a neighbour's prefill, FlashInfer by the batch.
        "only the attention backend TRITON_ATTN is accepted; use --attention-backend TRITON_ATTN": (
            facts.attention != "TRITON_ATTN"
        ),
        # vllm-project/vllm#57016: a fully cached prompt is prefilled one token at a time, by other kernels.
        "a mixture of experts with prefix caching differs between a cold and a cached prompt; use --no-enable-prefix-caching": (
            facts.moe and facts.prefix_caching
        ),
    }
    return tuple(reason for reason, holds in rules.items() if holds)
