"""Replace vLLM's kernels on a GPU by Playhead's, if that is configured and they are verified on that GPU.

According to its sources, vLLM's batch-invariant mode (0.32.0) leaves two gaps. On Hopper and Blackwell it keeps torch's matmul
on cuBLASLt, assuming that only a split of K varied there. And RMSNorm with a residual uses a fused CUDA kernel whose launcher,
before its fix, chose other blocks from 256 rows on. `PLAYHEAD_KERNELS=own` closes both, and replaces log-softmax and mean.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch

VARIABLE: Final = "PLAYHEAD_KERNELS"

TOLERANCE: Final = 1e-4
"""Maximum difference from torch's result, for float32 numbers of unit size."""

ROWS: Final = (2, 16, 17, 40)
SHAPES: Final = ((256, 64), (100, 70), (33, 33))
"""The row widths and matmul columns of the test, some of which fit the tiles."""

Kernel = Callable[..., Any]


class KernelVerificationError(RuntimeError):
    """A kernel is wrong, or not row-invariant, on this device."""


def kernel_choice() -> str:
    """The configured kernels: `vllm` or `own`."""
    return os.environ.get(VARIABLE, "vllm")


def offer_kernels(module: Any, layers: Any, key: str) -> None:
    """Replace the kernels after vLLM enables its batch-invariant mode. Safe to call twice."""
    enable = module.enable_batch_invariant_mode
    if getattr(enable, "offers", False):
        return

    def enable_batch_invariant_mode() -> None:
        enable()
        if not hasattr(module, "_playhead_library"):
            verify_kernels(torch.device(key.lower()))
            replace_kernels(module, layers, key)

    enable_batch_invariant_mode.offers = True  # type: ignore[attr-defined] # the mark that it is done
    module.enable_batch_invariant_mode = enable_batch_invariant_mode


def verify_kernels(device: Any) -> None:
    """Raise KernelVerificationError if a kernel differs from torch's, or if a row depends on its batch."""
    failed = [result for result in kernel_results(device) if not result["kept"] or not result["off"] < TOLERANCE]
    if failed:
        raise KernelVerificationError(
            f"Playhead's kernels failed their verification on {device}: {failed}; start without --kernels own"
        )


def kernel_results(device: Any) -> list[dict[str, Any]]:
    """For each kernel and shape: the maximum difference from torch, and whether rows keep their bits in larger batches."""
    from playhead_inference import kernels

    found = []
    for width, columns in SHAPES:
        b, weight = _random_rows(2, width, columns, device), _random_rows(3, 1, width, device)[0]
        checks: Sequence[tuple[str, Kernel, Kernel, int, tuple[Any, ...]]] = (
            ("matmul", kernels.matmul, torch.matmul, width, (b,)),
            ("matmul", kernels.matmul, torch.matmul, columns, (b.t(),)),
            ("rms_norm", kernels.rms_norm, _rms_norm, width, (weight, 1e-6)),
            ("log_softmax", kernels.log_softmax, partial(torch.log_softmax, dim=-1), width, ()),
            ("mean", kernels.mean, partial(torch.mean, dim=-1), width, ()),
        )
        for name, ours, theirs, length, operands in checks:
            x = _random_rows(1, max(ROWS), length, device)
            off = (ours(x, *operands) - theirs(x, *operands)).abs().max().item()
            found.append({"kernel": name, "width": length, "off": off, "kept": _is_row_invariant(ours, x, operands)})
    return found


def _is_row_invariant(kernel: Kernel, x: Any, operands: tuple[Any, ...]) -> bool:
    """Whether a row has the same bits alone and as the first and last one of every batch."""
    alone = kernel(x[:1], *operands)[0]
    return all(
        torch.equal(kernel(x[:rows], *operands)[0], alone)
        and torch.equal(kernel(x[:rows].flip(0), *operands)[-1], alone)
        for rows in ROWS
    )


def _rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    return torch.nn.functional.rms_norm(x, (x.shape[1],), weight, epsilon)


def _random_rows(seed: int, rows: int, width: int, device: Any) -> Any:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(device)


def replace_kernels(module: Any, layers: Any, key: str) -> None:
    """Replace the kernels where vLLM's functions look them up, and torch's matmul, which vLLM keeps on new GPUs."""
    module.matmul_persistent = matmul
    module.log_softmax = log_softmax
    module.mean_dim = mean
    module.rms_norm_batch_invariant = layers.rms_norm_batch_invariant = rms_norm
    library = torch.library.Library("aten", "IMPL")
    for name in ("mm", "addmm", "mm.out", "addmm.out"):
        function = getattr(module, f"{name.replace('.', '_')}_batch_invariant")
        library.impl(f"aten::{name}", function, key, allow_override=True)
    # A library that is collected takes its kernels with it.
    module._playhead_library = library


def matmul(a: Any, b: Any, bias: Any = None) -> Any:
    """Replace vLLM's `matmul_persistent`."""
    from playhead_inference import kernels

    product = kernels.matmul(a, b)
    return product if bias is None else (product + bias).to(a.dtype)


def log_softmax(input: Any, dim: int = -1) -> Any:  # noqa: A002 # vLLM's name for it
    """Replace vLLM's `log_softmax`, over the last dimension only."""
    from playhead_inference import kernels

    if dim not in (-1, input.ndim - 1):
        raise ValueError(f"log_softmax supports only the last dimension, not {dim}")
    return kernels.log_softmax(input.reshape(-1, input.shape[-1])).reshape(input.shape)


def mean(input: Any, dim: int, keepdim: bool = False, dtype: Any = None) -> Any:  # noqa: A002 # likewise
    """Replace vLLM's `mean_dim`, over one dimension."""
    from playhead_inference import kernels

    last = input.to(dtype or input.dtype).movedim(dim, -1)
    found = kernels.mean(last.reshape(-1, last.shape[-1])).reshape(last.shape[:-1])
    return found.unsqueeze(dim) if keepdim else found


def rms_norm(input: Any, weight: Any, eps: float = 1e-6, residual: Any = None) -> Any:  # noqa: A002 # likewise
    """Replace vLLM's `rms_norm_batch_invariant`. A residual is added first, and the sum is returned as well."""
    from playhead_inference import kernels

    total = input if residual is None else input + residual
    scale = weight if weight is not None else torch.ones(input.shape[-1], dtype=input.dtype, device=input.device)
    found = kernels.rms_norm(total.reshape(-1, input.shape[-1]), scale, eps).reshape(input.shape)
    return found if residual is None else (found, total)
