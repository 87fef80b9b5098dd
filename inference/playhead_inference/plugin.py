"""Provide the plugin function that vLLM calls in each of its processes before it builds anything.

vLLM ends if this function raises, but only logs it if this module fails to import. So the module imports nothing at the top.
"""


def register() -> None:
    """Install the patches and the guard. Safe to call twice. Raises RuntimeError for an unknown version of vLLM."""
    from vllm.platforms import current_platform

    from playhead_inference.config import guard_platform, is_mode_on
    from playhead_inference.gpu import kernel_choice
    from playhead_inference.versions import require_known_version

    require_known_version()
    guard_platform(type(current_platform))
    if current_platform.is_cpu():
        _patch_cpu()
        return
    if is_mode_on():
        _patch_gpu_sampler()
    if kernel_choice() == "own":
        _offer_own_kernels(current_platform.dispatch_key)


def _patch_cpu() -> None:
    import os

    # vLLM compiles some functions even in eager mode, and a trace would not show their code.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"

    import torch._dynamo.config
    from vllm import _custom_ops
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.sample import sampler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from playhead_inference.elementwise import replace_functions
    from playhead_inference.matmul import replace_experts, replace_matmul
    from playhead_inference.sampling import rewind
    from playhead_inference.threads import set_threads
    from playhead_inference.ties import order_equal_logits

    torch._dynamo.config.disable = True
    set_threads()

    register_backend(AttentionBackendEnum.CPU_ATTN, "playhead_inference.attention.Backend")
    rewind(GPUModelRunner)
    replace_matmul(_custom_ops)
    replace_experts(cpu_moe)
    replace_functions()
    order_equal_logits(sampler)


def _patch_gpu_sampler() -> None:
    from vllm.v1.sample import sampler
    from vllm.v1.sample.ops import topk_topp_sampler, topk_topp_triton
    from vllm.v1.worker.gpu.sample import logprob

    from playhead_inference.ties import keep_rows_whole, order_equal_logits

    order_equal_logits(sampler, logprob)
    keep_rows_whole(topk_topp_triton, topk_topp_sampler)


def _offer_own_kernels(key: str) -> None:
    from vllm.model_executor.determinism import batch_invariant
    from vllm.model_executor.layers import layernorm

    from playhead_inference.gpu import offer_kernels

    offer_kernels(batch_invariant, layernorm, key)
