"""Choose tokens by rules that read only their own row, also where logits are equal.

The logits of a model in bfloat16 are often equal: near 5 they are 1/32 apart. torch.topk returns equal values in an order that
depends on how many are asked for, and vLLM asks for as many as the request of the batch that wants the most. So the same
request got other tokens beside its own if a neighbour wanted more logprobs. And on a GPU vLLM 0.32.0 computes top-p in other
kernels by the number of requests: up to 64, it divides a row among the multiprocessors that are free, and adds up the parts.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch

from playhead_inference.switch import SWITCH

ROWS_AT_ONCE: Final = 32
"""Rows that are ordered at once, because their keys need eight bytes for each token of the vocabulary."""


def top_k(values: Any, k: int, dim: int = -1) -> Any:
    """Replace `torch.topk` for rows of floating-point numbers. Of equal values, the one with the lower index is first."""
    if not SWITCH.on:
        return torch.topk(values, k, dim)
    if values.dim() != 2 or dim not in (-1, 1) or not values.is_floating_point():
        raise ValueError(f"only the last dimension of floating-point rows can be ordered, not {dim} of {values.shape}")
    if values.device.type == "cpu":
        indices = _indices_of_rare_ties(values, k)
    else:
        indices = torch.cat([_unique_keys(rows).topk(k, dim=-1).indices for rows in values.split(ROWS_AT_ONCE)])
    return torch.return_types.topk((values.gather(-1, indices), indices))


def _indices_of_rare_ties(values: Any, k: int) -> Any:
    """The same indices, found faster if few rows have equal values: keys are made only for those that must choose."""
    highest, indices = torch.topk(values, k, dim=-1)
    last = highest[:, -1:]
    is_tied = (values == last).sum(dim=-1) > (highest == last).sum(dim=-1)
    if bool(is_tied.any()):
        indices[is_tied] = _unique_keys(values[is_tied]).topk(k, dim=-1).indices
    indices = indices.sort(dim=-1).values
    order = values.gather(-1, indices).sort(dim=-1, descending=True, stable=True).indices
    return indices.gather(-1, order)


def _unique_keys(rows: Any) -> Any:
    """Integers in the order of the values, and in the reverse order of the indices where the values are equal."""
    # Adding 0 makes the negative zero positive, which is equal to it but has other bits.
    bits = (rows.float() + 0.0).view(torch.int32)
    width = rows.shape[1]
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return ordered * width + torch.arange(width - 1, -1, -1, device=rows.device)


class _TorchWithTopK:
    """The module torch, except for `topk`."""

    topk = staticmethod(top_k)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def order_equal_logits(*modules: Any) -> None:
    """Make these modules of vLLM, which call `torch.topk`, call `top_k` instead. Safe to call twice."""
    for module in modules:
        module.torch = _TorchWithTopK()


def keep_rows_whole(kernels: Any, sampler: Any) -> None:
    """Make vLLM apply top-k and top-p by one kernel, one program a row, for every batch. Safe to call twice.

    `kernels` is vLLM's `topk_topp_triton`, and `sampler` the module that calls it.
    """
    kernels._SPLIT_MAX_BATCH = 0
    apply = sampler.apply_top_k_top_p_triton
    if not hasattr(apply, "__wrapped__"):
        sampler.apply_top_k_top_p_triton = _with_both(apply)


def _with_both(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Always pass k and p, because the kernel is compiled otherwise without one of them."""

    @wraps(apply)
    def call(logits: Any, k: Any, p: Any, *more: Any, **named: Any) -> Any:
        rows, width = logits.shape
        k = torch.full((rows,), width, dtype=torch.int32, device=logits.device) if k is None else k
        p = torch.ones(rows, dtype=torch.float32, device=logits.device) if p is None else p
        return apply(logits, k, p, *more, **named)

    return call
