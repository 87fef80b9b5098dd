"""Read vLLM's configuration into plain facts, and refuse there what the guard refuses."""

import os
from typing import Any

from playhead_inference.guard import Facts, refusals


class Refused(RuntimeError):
    """This configuration is not one that was tested."""


def degraded() -> bool:
    """Whether to serve what does not hold, without the claim."""
    return os.environ.get("PLAYHEAD_INVARIANCE") == "degrade"


def guard(platform: type[Any]) -> None:
    """Let a platform check every configuration against our rules, after its own. Safe to call twice."""
    if getattr(platform, "_playhead_guards", False):
        return
    own = platform.check_and_update_config

    def check_and_update_config(vllm_config: Any) -> None:
        if vllm_config.model_config is None:
            own(vllm_config)
            return
        found = refusals(facts(vllm_config, platform.device_type))
        if found and not degraded():
            raise Refused("not served batch-invariantly: " + "; ".join(found))
        # vLLM checks a configuration in every process: in ours, ours is already named.
        vllm_config.parallel_config.worker_extension_cls = EXTENSION
        own(vllm_config)

    platform.check_and_update_config = staticmethod(check_and_update_config)
    platform._playhead_guards = True


EXTENSION = "playhead_inference.worker.Witness"


def facts(vllm_config: Any, device: str) -> Facts:
    """What the rules ask about."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    backend = vllm_config.attention_config.backend
    return Facts(
        device=device,
        dtype=str(model.dtype).removeprefix("torch."),
        heads=model.get_num_attention_heads(parallel),
        kv_heads=model.get_num_kv_heads(parallel),
        attention=backend.name if backend is not None else None,
        eager=bool(model.enforce_eager),
        mode=os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"),
        moe=bool(model.is_moe),
        prefix_caching=bool(cache.enable_prefix_caching),
        features={
            "speculation": vllm_config.speculative_config is not None,
            "lora": vllm_config.lora_config is not None,
            "quantization": model.quantization is not None,
            "quantized_cache": cache.cache_dtype != "auto",
            "mla": bool(model.use_mla),
            "window": bool(model.get_sliding_window()) or "sliding_attention" in _layers(model),
            "state": bool(model.is_hybrid or model.has_inner_state),
            "multimodal": bool(model.is_multimodal_model),
            "encoder": bool(model.is_encoder_decoder),
            "pooling": model.runner_type != "generate",
            "tensor_parallel": parallel.tensor_parallel_size > 1,
            "pipeline_parallel": parallel.pipeline_parallel_size > 1,
            "data_parallel": parallel.data_parallel_size > 1,
            "context_parallel": parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1,
            "expert_parallel": bool(parallel.enable_expert_parallel),
            "kv_transfer": vllm_config.kv_transfer_config is not None,
            # Its generators are others: what is put back there is not what this one drew.
            "runner": device == "cpu" and bool(vllm_config.use_v2_model_runner),
            "extension": parallel.worker_extension_cls not in ("", EXTENSION),
        },
    )


def _layers(model: Any) -> tuple[str, ...]:
    return tuple(getattr(model.hf_text_config, "layer_types", None) or ())
