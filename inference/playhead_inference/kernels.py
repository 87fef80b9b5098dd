"""Implement matmul, RMSNorm, log-softmax and mean in Triton, with fixed tiles and a fixed order of addition.

Each row of the result is computed by one program that reads the whole reduced axis in blocks of a fixed size, first to last.
The reduction is never split, and no tile depends on the number of rows. gpu.py replaces vLLM's kernels by these if configured.
They are tested in Triton's interpreter, which covers the logic of the tiles but not a GPU's order of addition within a block.
They are simple rather than fast: matrices are multiplied in float32, without tensor cores. Kernel parameters have no types,
because Triton (on an H100, not in its interpreter) takes an annotation for a global variable and refuses to compile.
"""

import torch
import triton
import triton.language as tl

ROWS, COLUMNS, DEPTH = 16, 32, 32
"""The dimensions of one tile of a matmul. They must be constants."""

BLOCK = 256
"""Number of elements of a row that are reduced at once."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore] # Triton's own
def _matmul(  # type: ignore[no-untyped-def] # see above
    a,
    b,
    out,
    m,
    n,
    k,
    down,
    across,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
) -> None:
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros((rows, columns), dtype=tl.float32)
    for start in range(0, k, depth):
        inner = start + tl.arange(0, depth)
        left = tl.load(a + row[:, None] * k + inner[None, :], mask=(row[:, None] < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(
            b + inner[:, None] * down + column[None, :] * across,
            mask=(inner[:, None] < k) & (column[None, :] < n),
            other=0.0,
        )
        total = tl.dot(left.to(tl.float32), right.to(tl.float32), total, input_precision="ieee")
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(out + row[:, None] * n + column[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore] # Triton's own
def _rms_norm(x, weight, out, width, epsilon, block: tl.constexpr) -> None:  # type: ignore[no-untyped-def] # see above
    row = tl.program_id(0) * width
    squares = tl.zeros((block,), dtype=tl.float32)
    for start in range(0, width, block):
        at = start + tl.arange(0, block)
        value = tl.load(x + row + at, mask=at < width, other=0.0).to(tl.float32)
        squares += value * value
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / width + epsilon)
    for start in range(0, width, block):
        at = start + tl.arange(0, block)
        value = tl.load(x + row + at, mask=at < width, other=0.0).to(tl.float32)
        factor = tl.load(weight + at, mask=at < width, other=0.0).to(tl.float32)
        tl.store(out + row + at, (value * scale * factor).to(out.dtype.element_ty), mask=at < width)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore] # Triton's own
def _log_softmax(x, out, width, block: tl.constexpr) -> None:  # type: ignore[no-untyped-def] # see above
    row = tl.program_id(0) * width
    highest = tl.full((block,), float("-inf"), dtype=tl.float32)
    for start in range(0, width, block):
        at = start + tl.arange(0, block)
        highest = tl.maximum(highest, tl.load(x + row + at, mask=at < width, other=float("-inf")).to(tl.float32))
    top = tl.max(highest, axis=0)
    sums = tl.zeros((block,), dtype=tl.float32)
    for start in range(0, width, block):
        at = start + tl.arange(0, block)
        value = tl.load(x + row + at, mask=at < width, other=float("-inf")).to(tl.float32)
        sums += tl.exp(value - top)
    shift = top + tl.log(tl.sum(sums, axis=0))
    for start in range(0, width, block):
        at = start + tl.arange(0, block)
        value = tl.load(x + row + at, mask=at < width, other=0.0).to(tl.float32)
        tl.store(out + row + at, (value - shift).to(out.dtype.element_ty), mask=at < width)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore] # Triton's own
def _mean(x, out, width, block: tl.constexpr) -> None:  # type: ignore[no-untyped-def] # see above
    row = tl.program_id(0) * width
    sums = tl.zeros((block,), dtype=tl.float32)
    for start in range(0, width, block):
        at = start + tl.arange(0, block)
        sums += tl.load(x + row + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(out + tl.program_id(0), (tl.sum(sums, axis=0) / width).to(out.dtype.element_ty))


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b for two matrices. b may have any strides, because a weight is often transposed."""
    a = a.contiguous()
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, ROWS), triton.cdiv(n, COLUMNS))
    _matmul[grid](a, b, out, m, n, k, b.stride(0), b.stride(1), rows=ROWS, columns=COLUMNS, depth=DEPTH)
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Divide each row by the root of its mean square, and multiply it by the weight."""
    x = x.contiguous()
    out = torch.empty_like(x)
    _rms_norm[(x.shape[0],)](x, weight, out, x.shape[1], epsilon, block=BLOCK)
    return out


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    """Compute the log-softmax over the last of two dimensions."""
    x = x.contiguous()
    out = torch.empty_like(x)
    _log_softmax[(x.shape[0],)](x, out, x.shape[1], block=BLOCK)
    return out


def mean(x: torch.Tensor) -> torch.Tensor:
    """Compute the mean over the last of two dimensions."""
    x = x.contiguous()
    out = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    _mean[(x.shape[0],)](x, out, x.shape[1], block=BLOCK)
    return out
