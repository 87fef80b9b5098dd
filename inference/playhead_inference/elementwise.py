"""Patch activation functions on a CPU so that an element's bits do not depend on its place in the batch.

torch computes most elements of a float tensor with vector instructions and the last few of each thread's share one by one,
with another approximation of `exp`, `erf` and `tanh`. It divides a tensor of more than 32,768 elements evenly among its
threads, without regard to rows, so how many rows there are decides which elements are computed one by one (torch 2.13:
`SiluAndMul.forward_native` with 4,864 columns and 4 threads differs at 14 to 19 rows, with 1,000 columns and 2 threads from
33 rows on). Here each call gets a padded buffer, so that every thread's share consists of whole vectors.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

from playhead_inference.switch import BLOCK, SWITCH

GRAIN: Final = 32_768
"""Elements per thread up to which torch does not use another thread (at::internal::GRAIN_SIZE)."""

VECTORS: Final = 64
"""Every thread's share is a multiple of this: twice what torch's unrolled loop processes at once with AVX-512."""

FUNCTIONS: Final = (
    "celu",
    "cos",
    "elu",
    "erf",
    "exp",
    "expm1",
    "gelu",
    "hardswish",
    "log",
    "log1p",
    "log_sigmoid",
    "mish",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "tanh",
)
"""Functions that do not round correctly, so that a vector instruction and its scalar counterpart may differ."""


def padded_length(elements: int, threads: int) -> int:
    """The smallest length of at least `elements` that torch divides among its threads in whole vectors."""
    length = max(elements, 1)
    while True:
        shares = min(threads, -(-length // GRAIN))
        longer = -(-length // (VECTORS * shares)) * VECTORS * shares
        if longer == length:
            return length
        length = longer


def replace_functions() -> None:
    """Replace torch's functions for CPUs, wherever they are called from. Safe to call twice."""
    if getattr(torch, "_playhead_elementwise", None) is not None:
        return
    library = torch.library.Library("aten", "IMPL")
    for name in FUNCTIONS:
        packet = getattr(torch.ops.aten, name, None)
        # torch's kernel stays available through the `out` variant.
        if packet is not None and "out" in packet.overloads() and "default" in packet.overloads():
            library.impl(name, _row_invariant(packet.out), "CPU", allow_override=True)
            if hasattr(torch.ops.aten, f"{name}_"):
                library.impl(f"{name}_", _in_place(_row_invariant(packet.out)), "CPU", allow_override=True)
    # If the library were garbage-collected, its kernels would be removed.
    torch._playhead_elementwise = library


def _row_invariant(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def function(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not SWITCH.on or not x.is_floating_point() or not x.numel():
            return kernel(x, *args, **kwargs, out=torch.empty_like(x, dtype=_result_type(x)))
        if x.dim() == 0:
            return _computed(kernel, x.reshape(1), args, kwargs).reshape(())
        if len(x) <= BLOCK:
            return _computed(kernel, x, args, kwargs)
        return torch.cat([_computed(kernel, rows, args, kwargs) for rows in x.split(BLOCK)])

    return function


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    def in_place(x: Any, *args: Any, **kwargs: Any) -> Any:
        return x.copy_(function(x, *args, **kwargs))

    return in_place


def _result_type(x: Any) -> Any:
    return x.dtype if x.is_floating_point() or x.is_complex() else torch.get_default_dtype()


def _computed(kernel: Callable[..., Any], x: Any, args: Any, kwargs: Any) -> Any:
    """Compute at most BLOCK rows, in a flat buffer that is padded with zeros."""
    elements = x.numel()
    buffer = torch.empty(padded_length(elements, torch.get_num_threads()), dtype=x.dtype)
    buffer[elements:].zero_()
    buffer[:elements].view(x.shape).copy_(x)
    kernel(buffer, *args, **kwargs, out=buffer)
    return buffer[:elements].view(x.shape)
