"""What vLLM calls in each of its processes before it builds anything.

vLLM ends when this function raises, but only logs it when this module fails to import: so nothing is imported up here.
"""


def register() -> None:
    """Put our attention, generators and guard in place. Safe to call twice. Raises where vLLM is not the one we know."""
    from vllm.platforms import current_platform

    from playhead_inference.config import guard
    from playhead_inference.gpu import asked
    from playhead_inference.versions import known

    known()
    guard(type(current_platform))
    if current_platform.is_cpu():
        _on_cpu()
    elif asked() == "own":
        _own_kernels(current_platform.dispatch_key)


def _on_cpu() -> None:
    import os

    # Functions that vLLM compiles also in eager mode would run code that no trace shows.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"

    import torch._dynamo.config
    from vllm import _custom_ops
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from playhead_inference.elementwise import replace_functions
    from playhead_inference.matmul import replace_experts, replace_matmul
    from playhead_inference.sampling import rewind
    from playhead_inference.threads import set_threads

    torch._dynamo.config.disable = True
    set_threads()

    register_backend(AttentionBackendEnum.CPU_ATTN, "playhead_inference.attention.Backend")
    rewind(GPUModelRunner)
    replace_matmul(_custom_ops)
    replace_experts(cpu_moe)
    replace_functions()


def _own_kernels(key: str) -> None:
    from vllm.model_executor.determinism import batch_invariant
    from vllm.model_executor.layers import layernorm

    from playhead_inference.gpu import offer

    offer(batch_invariant, layernorm, key)
