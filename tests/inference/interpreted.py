"""Run by the server's Python, with TRITON_INTERPRET=1: our kernels beside torch, and each row beside itself. One JSON line."""

import json
from collections.abc import Callable

import torch
from playhead_inference import kernels

SHAPES = ((256, 64), (100, 70), (33, 33))
"""Width of the rows, and columns of a matmul: some fit the tiles and some do not."""


def found(
    name: str, ours: Callable[[torch.Tensor], torch.Tensor], theirs: Callable[[torch.Tensor], torch.Tensor], width: int
) -> dict[str, object]:
    """How far from torch at most, and whether the first and the last row keep their bits as the batch grows."""
    x = torch.randn(40, width, generator=torch.Generator().manual_seed(1))
    alone = ours(x[:1])[0]
    kept = all(
        torch.equal(ours(x[:rows])[0], alone) and torch.equal(ours(x[:rows].flip(0))[-1], alone)
        for rows in (2, 16, 17, 40)
    )
    return {"kernel": name, "width": width, "off": (ours(x) - theirs(x)).abs().max().item(), "kept": kept}


def main() -> None:
    results = []
    for width, columns in SHAPES:
        b = torch.randn(width, columns, generator=torch.Generator().manual_seed(2))
        weight = torch.rand(width, generator=torch.Generator().manual_seed(3))
        results += [
            found("matmul", lambda x, b=b: kernels.matmul(x, b), lambda x, b=b: x @ b, width),
            found(
                "rms_norm",
                lambda x, weight=weight: kernels.rms_norm(x, weight, 1e-6),
                lambda x, weight=weight: torch.nn.functional.rms_norm(x, (x.shape[1],), weight, 1e-6),
                width,
            ),
            found("log_softmax", kernels.log_softmax, lambda x: x.log_softmax(-1), width),
            found("mean", kernels.mean, lambda x: x.mean(-1), width),
        ]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
