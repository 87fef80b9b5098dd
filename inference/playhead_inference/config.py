"""Read vLLM's configuration into plain facts, and refuse there what the guard refuses."""

import os
from importlib.metadata import entry_points
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
        executor = vllm_config.parallel_config.distributed_executor_backend
        own(vllm_config)
        if platform.device_type == "cpu" and executor == "uni":
            # vLLM starts one more process on a CPU, to set the variables of OpenMP there. Ours are set before it starts,
            # and each process that imports vLLM takes seconds.
            vllm_config.parallel_config.distributed_executor_backend = executor

    platform.check_and_update_config = staticmethod(check_and_update_config)
    platform._playhead_guards = True


EXTENSION = "playhead_inference.worker.Witness"

WORKERS = ("auto", "", "vllm.v1.worker.cpu_worker.CPUWorker", "vllm.v1.worker.gpu_worker.Worker")
"""vLLM's own: in every process but the first, `auto` is already resolved."""


def facts(vllm_config: Any, device: str) -> Facts:
    """What the rules ask about."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    offload, executor = vllm_config.offload_config, parallel.distributed_executor_backend
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
            "worker": parallel.worker_cls not in WORKERS,
            "executor": executor not in (None, "uni", "mp"),
            "scheduler": vllm_config.scheduler_config.scheduler_cls is not None,
            "logits_processors": bool(model.logits_processors) or bool(entry_points(group="vllm.logits_processors")),
            "kv_offloading": cache.kv_offloading_size is not None,
            "cpu_offload": bool(offload.uva.cpu_offload_gb or offload.prefetch.offload_group_size),
            "ec_transfer": vllm_config.ec_transfer_config is not None,
            "weight_transfer": vllm_config.weight_transfer_config is not None,
            "watermark": vllm_config.watermark_config is not None,
            "diffusion": vllm_config.diffusion_config is not None,
            "prompt_embeds": bool(model.enable_prompt_embeds),
            "processed_logprobs": model.logprobs_mode != "raw_logprobs",
            "load_format": str(vllm_config.load_config.load_format) not in ("auto", "hf", "safetensors", "pt"),
            "implementation": str(model.model_impl) not in ("auto", "vllm"),
            "sleep": bool(model.enable_sleep_mode),
            "additional": bool(vllm_config.additional_config),
            "kernels": str(getattr(vllm_config.kernel_config, "linear_backend", "auto")) != "auto"
            or str(getattr(vllm_config.kernel_config, "moe_backend", "auto")) != "auto",
            "remote_code": bool(model.trust_remote_code),
            "plugins": bool(_other_plugins()),
            "development": os.environ.get("VLLM_SERVER_DEV_MODE", "0") not in ("", "0"),
        },
    )


def server_refusals(args: Any) -> list[str]:
    """What is refused of the server's own arguments, which are no part of its configuration. `args`: parsed; None is none."""
    names = getattr(args, "middleware", None) or []
    return [f"middleware {name} (--middleware) was not tested" for name in names]


def _other_plugins() -> list[str]:
    """Plugins besides ours that are installed and that VLLM_PLUGINS names: vLLM runs them in every process."""
    named = os.environ.get("VLLM_PLUGINS", "").split(",")
    found = (point.name for group in PLUGINS for point in entry_points(group=group))
    return [name for name in found if name in named and name != "playhead_inference"]


PLUGINS = ("vllm.general_plugins", "vllm.platform_plugins", "vllm.endpoint_plugins")


def _layers(model: Any) -> tuple[str, ...]:
    return tuple(getattr(model.hf_text_config, "layer_types", None) or ())
