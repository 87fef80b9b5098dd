"""On a GPU, and where it is asked for: our kernels in place of vLLM's, once they have shown on that very GPU that they hold.

vLLM's mode (0.32.0) leaves two gaps, by its sources. On Hopper and Blackwell torch's own matmul stays with cuBLASLt, on the word
that a split of K was all that varied there. And RMSNorm with a residual goes to a fused CUDA kernel whose launcher, in versions
before its fix, took other blocks from 256 rows on. `PLAYHEAD_KERNELS=own` fills both, and takes log-softmax and mean with them.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch

ASKED: Final = "PLAYHEAD_KERNELS"

TOLERANCE: Final = 1e-4
"""How far from torch's own result, on numbers of unit size, in float32."""

ROWS: Final = (2, 16, 17, 40)
SHAPES: Final = ((256, 64), (100, 70), (33, 33))
"""Width of the rows, and columns of a matmul: some fit the tiles and some do not."""

Kernel = Callable[..., Any]


class Unverified(RuntimeError):
    """A kernel of ours does not do on this device what it does elsewhere."""


def asked() -> str:
    """Whose kernels: vllm's, or our own."""
    return os.environ.get(ASKED, "vllm")


def offer(module: Any, layers: Any, key: str) -> None:
    """Let vLLM's mode, when it is switched on, end with our kernels in its place. Safe to call twice."""
    enable = module.enable_batch_invariant_mode
    if getattr(enable, "offers", False):
        return

    def enable_batch_invariant_mode() -> None:
        enable()
        if not hasattr(module, "_playhead_library"):
            verify(torch.device(key.lower()))
            take_over(module, layers, key)

    enable_batch_invariant_mode.offers = True  # type: ignore[attr-defined] # the mark that it is done
    module.enable_batch_invariant_mode = enable_batch_invariant_mode


def verify(device: Any) -> None:
    """Raises Unverified where a kernel is not right beside torch, or a row not the same in any batch."""
    failed = [result for result in results(device) if not result["kept"] or not result["off"] < TOLERANCE]
    if failed:
        raise Unverified(f"our kernels do not hold on {device}: {failed}; start without --kernels own")


def results(device: Any) -> list[dict[str, Any]]:
    """For each kernel and shape: how far from torch at most, and whether rows keep their bits as the batch grows."""
    from playhead_inference import kernels

    found = []
    for width, columns in SHAPES:
        b, weight = _drawn(2, width, columns, device), _drawn(3, 1, width, device)[0]
        checks: Sequence[tuple[str, Kernel, Kernel, int, tuple[Any, ...]]] = (
            ("matmul", kernels.matmul, torch.matmul, width, (b,)),
            ("matmul", kernels.matmul, torch.matmul, columns, (b.t(),)),
            ("rms_norm", kernels.rms_norm, _rms_norm, width, (weight, 1e-6)),
            ("log_softmax", kernels.log_softmax, partial(torch.log_softmax, dim=-1), width, ()),
            ("mean", kernels.mean, partial(torch.mean, dim=-1), width, ()),
        )
        for name, ours, theirs, length, operands in checks:
            x = _drawn(1, max(ROWS), length, device)
            off = (ours(x, *operands) - theirs(x, *operands)).abs().max().item()
            found.append({"kernel": name, "width": length, "off": off, "kept": _kept(ours, x, operands)})
    return found


def _kept(kernel: Kernel, x: Any, operands: tuple[Any, ...]) -> bool:
    """Whether a row has the same bits alone, first and last of every batch."""
    alone = kernel(x[:1], *operands)[0]
    return all(
        torch.equal(kernel(x[:rows], *operands)[0], alone)
        and torch.equal(kernel(x[:rows].flip(0), *operands)[-1], alone)
        for rows in ROWS
    )


def _rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    return torch.nn.functional.rms_norm(x, (x.shape[1],), weight, epsilon)


def _drawn(seed: int, rows: int, width: int, device: Any) -> Any:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(device)


def take_over(module: Any, layers: Any, key: str) -> None:
    """Put ours where vLLM's own functions look theirs up, and under torch's matmul, which vLLM leaves alone on new GPUs."""
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
    """As vLLM's `matmul_persistent`."""
    from playhead_inference import kernels

    product = kernels.matmul(a, b)
    return product if bias is None else (product + bias).to(a.dtype)


def log_softmax(input: Any, dim: int = -1) -> Any:  # noqa: A002 # vLLM's name for it
    """As vLLM's, over the last dimension only."""
    from playhead_inference import kernels

    if dim not in (-1, input.ndim - 1):
        raise ValueError("log-softmax is over the last dimension")
    return kernels.log_softmax(input.reshape(-1, input.shape[-1])).reshape(input.shape)


def mean(input: Any, dim: int, keepdim: bool = False, dtype: Any = None) -> Any:  # noqa: A002 # likewise
    """As vLLM's `mean_dim`: over one dimension."""
    from playhead_inference import kernels

    last = input.to(dtype or input.dtype).movedim(dim, -1)
    found = kernels.mean(last.reshape(-1, last.shape[-1])).reshape(last.shape[:-1])
    return found.unsqueeze(dim) if keepdim else found


def rms_norm(input: Any, weight: Any, eps: float = 1e-6, residual: Any = None) -> Any:  # noqa: A002 # likewise
    """As vLLM's `rms_norm_batch_invariant`; with a residual it is added first, and handed back with it."""
    from playhead_inference import kernels

    total = input if residual is None else input + residual
    scale = weight if weight is not None else torch.ones(input.shape[-1], dtype=input.dtype, device=input.device)
    found = kernels.rms_norm(total.reshape(-1, input.shape[-1]), scale, eps).reshape(input.shape)
    return found if residual is None else (found, total)
