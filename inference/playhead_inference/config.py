"""Read vLLM's configuration into plain facts, and raise if the guard refuses it."""

import os
from importlib.metadata import entry_points
from typing import Any

from playhead_inference.guard import Facts, refusals


class RefusedConfiguration(RuntimeError):
    """The configuration was not tested; the message says what in it."""


def is_degraded() -> bool:
    """Whether to serve a configuration that is refused or does not hold, without the claim."""
    return os.environ.get("PLAYHEAD_INVARIANCE") == "degrade"


def is_mode_on() -> bool:
    """Whether vLLM's own batch-invariant mode is switched on."""
    return os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0")


def guard_platform(platform: type[Any]) -> None:
    """Make a platform of vLLM check every configuration against the guard's rules as well. Safe to call twice."""
    if getattr(platform, "_playhead_guards", False):
        return
    own = platform.check_and_update_config

    def check_and_update_config(vllm_config: Any) -> None:
        if vllm_config.model_config is None:
            own(vllm_config)
            return
        found = refusals(read_facts(vllm_config, platform.device_type))
        if found and not is_degraded():
            raise RefusedConfiguration("not served batch-invariantly: " + "; ".join(found))
        # vLLM checks a configuration in every process, so the extension may already be set.
        vllm_config.parallel_config.worker_extension_cls = EXTENSION
        executor = vllm_config.parallel_config.distributed_executor_backend
        own(vllm_config)
        if platform.device_type == "cpu" and executor == "uni":
            # On a CPU, vLLM starts one more process to set OpenMP's variables there. Here they are set before vLLM starts,
            # and each process that imports vLLM takes seconds to start.
            vllm_config.parallel_config.distributed_executor_backend = executor

    platform.check_and_update_config = staticmethod(check_and_update_config)
    platform._playhead_guards = True


EXTENSION = "playhead_inference.worker.WorkerExtension"

WORKERS = ("auto", "", "vllm.v1.worker.cpu_worker.CPUWorker", "vllm.v1.worker.gpu_worker.Worker")
"""vLLM's own worker classes. `auto` is already resolved in every process but the first."""


def read_facts(vllm_config: Any, device: str) -> Facts:
    """Read the facts that the guard's rules need."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    backend = vllm_config.attention_config.backend
    return Facts(
        device=device,
        dtype=str(model.dtype).removeprefix("torch."),
        heads=model.get_num_attention_heads(parallel),
        kv_heads=model.get_num_kv_heads(parallel),
        attention=backend.name if backend is not None else None,
        eager=bool(model.enforce_eager),
        mode=is_mode_on(),
        moe=bool(model.is_moe),
        prefix_caching=bool(vllm_config.cache_config.enable_prefix_caching),
        features={
            **_model_features(model),
            **_cache_features(vllm_config.cache_config),
            **_parallel_features(parallel),
            **_engine_features(vllm_config),
            # The generators of the second runner are others, so restoring them would restore the wrong ones.
            "runner": device == "cpu" and bool(vllm_config.use_v2_model_runner),
            "plugins": bool(_other_plugins()),
            "development": os.environ.get("VLLM_SERVER_DEV_MODE", "0") not in ("", "0"),
        },
    )


def _model_features(model: Any) -> dict[str, bool]:
    return {
        "quantization": model.quantization is not None,
        "mla": bool(model.use_mla),
        "window": bool(model.get_sliding_window()) or "sliding_attention" in _layer_types(model),
        "state": bool(model.is_hybrid or model.has_inner_state),
        "multimodal": bool(model.is_multimodal_model),
        "encoder": bool(model.is_encoder_decoder),
        "pooling": model.runner_type != "generate",
        "logits_processors": bool(model.logits_processors) or bool(entry_points(group="vllm.logits_processors")),
        "prompt_embeds": bool(model.enable_prompt_embeds),
        "processed_logprobs": model.logprobs_mode != "raw_logprobs",
        "implementation": str(model.model_impl) not in ("auto", "vllm"),
        "sleep": bool(model.enable_sleep_mode),
        "remote_code": bool(model.trust_remote_code),
    }


def _cache_features(cache: Any) -> dict[str, bool]:
    return {
        "quantized_cache": cache.cache_dtype != "auto",
        "kv_offloading": cache.kv_offloading_size is not None,
    }


def _parallel_features(parallel: Any) -> dict[str, bool]:
    return {
        "tensor_parallel": parallel.tensor_parallel_size > 1,
        "pipeline_parallel": parallel.pipeline_parallel_size > 1,
        "data_parallel": parallel.data_parallel_size > 1,
        "context_parallel": parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1,
        "expert_parallel": bool(parallel.enable_expert_parallel),
        "extension": parallel.worker_extension_cls not in ("", EXTENSION),
        "worker": parallel.worker_cls not in WORKERS,
        "executor": parallel.distributed_executor_backend not in (None, "uni", "mp"),
    }


def _engine_features(vllm_config: Any) -> dict[str, bool]:
    offload, kernels = vllm_config.offload_config, vllm_config.kernel_config
    return {
        "speculation": vllm_config.speculative_config is not None,
        "lora": vllm_config.lora_config is not None,
        "kv_transfer": vllm_config.kv_transfer_config is not None,
        "scheduler": vllm_config.scheduler_config.scheduler_cls is not None,
        "cpu_offload": bool(offload.uva.cpu_offload_gb or offload.prefetch.offload_group_size),
        "ec_transfer": vllm_config.ec_transfer_config is not None,
        "weight_transfer": vllm_config.weight_transfer_config is not None,
        "watermark": vllm_config.watermark_config is not None,
        "diffusion": vllm_config.diffusion_config is not None,
        "load_format": str(vllm_config.load_config.load_format) not in ("auto", "hf", "safetensors", "pt"),
        "additional": bool(vllm_config.additional_config),
        "kernels": any(str(getattr(kernels, name, "auto")) != "auto" for name in ("linear_backend", "moe_backend")),
    }


def server_refusals(args: Any) -> list[str]:
    """The reasons to refuse the server's own arguments, which are not part of vLLM's configuration.

    `args` are the parsed arguments, or None.
    """
    names = getattr(args, "middleware", None) or []
    return [f"middleware {name} (--middleware) was not tested" for name in names]


def _other_plugins() -> list[str]:
    """Other installed plugins that VLLM_PLUGINS names: vLLM runs them in every process."""
    named = os.environ.get("VLLM_PLUGINS", "").split(",")
    found = (point.name for group in PLUGINS for point in entry_points(group=group))
    return [name for name in found if name in named and name != "playhead_inference"]


PLUGINS = ("vllm.general_plugins", "vllm.platform_plugins", "vllm.endpoint_plugins")


def _layer_types(model: Any) -> tuple[str, ...]:
    return tuple(getattr(model.hf_text_config, "layer_types", None) or ())
