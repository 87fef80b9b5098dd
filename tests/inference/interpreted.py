"""Test the kernels by themselves and in place of vLLM's. The server's Python runs this with TRITON_INTERPRET=1; it prints JSON."""

import json
from typing import Any

import torch
from playhead_inference import gpu
from vllm.model_executor.determinism import batch_invariant
from vllm.model_executor.layers import layernorm


def off(ours: Any, theirs: Any) -> float:
    """The maximum difference."""
    assert ours.shape == theirs.shape
    return (ours - theirs).abs().max().item()


def in_place() -> dict[str, float]:
    """The differences between vLLM's and torch's functions with the replaced kernels, and torch before that."""
    draw = torch.Generator().manual_seed(4)
    a, b, c = (
        torch.randn(9, 40, generator=draw),
        torch.randn(40, 24, generator=draw),
        torch.randn(9, 40, generator=draw),
    )
    bias, weight, many = b[0].clone(), b[:, 0].clone(), torch.randn(3, 4, 5, generator=draw)
    want = {
        "mm": a @ b,
        "addmm": torch.addmm(bias, a, b),
        "linear": torch.nn.functional.linear(a, b.t(), bias),
        "log_softmax": many.log_softmax(-1),
        "mean": many.mean((0, 2)),
        "mean, kept": many.mean(1, keepdim=True),
        "rms_norm": torch.nn.functional.rms_norm(a, (40,), weight, 1e-6),
        "rms_norm, residual": torch.nn.functional.rms_norm(a + c, (40,), weight, 1e-6),
        "rms_norm, no weight": torch.nn.functional.rms_norm(a, (40,), None, 1e-6),
    }
    # Like the plugin when vLLM's mode is enabled, which this machine can only pretend.
    batch_invariant.enable_batch_invariant_mode = lambda: None
    for _ in range(2):
        gpu.offer_kernels(batch_invariant, layernorm, "CPU")
        batch_invariant.enable_batch_invariant_mode()
    normed, residual = layernorm.rms_norm_batch_invariant(a, weight, 1e-6, residual=c)
    assert torch.equal(residual, a + c)
    have = {
        "mm": torch.mm(a, b),
        "addmm": torch.addmm(bias, a, b),
        "linear": batch_invariant.linear_batch_invariant(a, b.t(), bias),
        "log_softmax": batch_invariant._log_softmax_batch_invariant(many, -1, False),
        "mean": batch_invariant.mean_batch_invariant(many, [0, 2]),
        "mean, kept": batch_invariant.mean_batch_invariant(many, [1], keepdim=True),
        "rms_norm": layernorm.rms_norm_batch_invariant(a, weight, 1e-6),
        "rms_norm, residual": normed,
        "rms_norm, no weight": layernorm.rms_norm_batch_invariant(a, None, 1e-6),
    }
    return {name: off(have[name], want[name]) for name in want}


def refusal_of_wrong_kernel() -> str:
    """The message about a kernel that fails: a matmul that depends on the number of rows."""
    from playhead_inference import kernels

    kernels.matmul, right = lambda a, b: right(a, b) * (1 + len(a) * 1e-6), kernels.matmul
    try:
        gpu.verify_kernels(torch.device("cpu"))
    except gpu.KernelVerificationError as error:
        return str(error)
    finally:
        kernels.matmul = right
    return ""


def main() -> None:
    calls = []
    gpu.matmul, ours = lambda *words, **named: calls.append(1) or ours(*words, **named), gpu.matmul
    found = {
        "alone": gpu.kernel_results(torch.device("cpu")),
        "refused": refusal_of_wrong_kernel(),
        "in_place": in_place(),
    }
    print(json.dumps(found | {"multiplied": len(calls)}))


if __name__ == "__main__":
    main()
