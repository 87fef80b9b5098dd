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
    from vllm import _custom_ops
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from playhead_inference.matmul import pair
    from playhead_inference.sampling import rewind

    register_backend(AttentionBackendEnum.CPU_ATTN, "playhead_inference.attention.Backend")
    rewind(GPUModelRunner)
    pair(_custom_ops)


def _own_kernels(key: str) -> None:
    from vllm.model_executor.determinism import batch_invariant
    from vllm.model_executor.layers import layernorm

    from playhead_inference.gpu import offer

    offer(batch_invariant, layernorm, key)
