"""Order equal logits, and find steps that depend on the batch. The server's Python runs this on a CPU; it prints JSON."""

import json
from types import SimpleNamespace
from typing import Any

import torch
from playhead_inference import sampler
from playhead_inference.switch import SWITCH
from playhead_inference.ties import _unique_keys, keep_rows_whole, order_equal_logits, top_k


def rows_with_equal_values(dtype: Any) -> Any:
    """Rows of a few different values, more of them than are ordered at once, with zeros of both signs and infinities."""
    rows = torch.randint(-4, 5, (70, 300), generator=torch.Generator().manual_seed(1)).to(dtype) / 4
    rows[3], rows[4, ::2], rows[5, 7], rows[6, :9] = 0.0, -0.0, float("-inf"), float("inf")
    return rows


def wrong_orders() -> list[str]:
    """The cases in which the order is not that of a stable sort, by the way of a CPU or by that of a GPU."""
    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        rows = rows_with_equal_values(dtype)
        right = rows.float().sort(dim=-1, descending=True, stable=True)
        for count in (1, 5, 20):
            values, indices = top_k(rows, count, dim=-1)
            same = torch.equal(indices, right.indices[:, :count]) and torch.equal(values, rows.gather(-1, indices))
            by_keys = _unique_keys(rows).topk(count, dim=-1).indices
            found += [] if same and torch.equal(by_keys, indices) else [f"{dtype} {count}"]
    return found


def reported_tokens(module: Any) -> Any:
    """The first five tokens by a module of vLLM, among those of a batch that asks for twenty."""
    return module.torch.topk(rows_with_equal_values(torch.bfloat16), 20, dim=-1).indices[:, :5]


def dependent_steps() -> list[str]:
    """The names of steps that are found to depend on the batch: one does, one does not."""
    numbers = torch.arange(8.0)
    steps = {
        "dependent": lambda at, count: (numbers[at : at + count] + (count == 3),),
        "independent": lambda at, count: (numbers[at : at + count] * 2,),
    }
    sampler._sampler_steps = lambda *_: iter(steps.items())
    return sampler.differing_steps(300, 8, torch.float32, torch.device("cpu"))[1]


def top_p_calls() -> list[Any]:
    """What vLLM's function gets, as the lists of k and p, if one of them is given or both are."""
    calls: list[Any] = []
    kernels = SimpleNamespace(_SPLIT_MAX_BATCH=64)
    module = SimpleNamespace(apply_top_k_top_p_triton=lambda logits, k, p: calls.append((k.tolist(), p.tolist())))
    for _ in range(2):
        keep_rows_whole(kernels, module)
    logits, k, p = torch.zeros(2, 9), torch.tensor([3, 9]), torch.tensor([0.5, 1.0])
    for arguments in ((k, None), (None, p), (k, p)):
        module.apply_top_k_top_p_triton(logits, *arguments)
    return [kernels._SPLIT_MAX_BATCH, *calls]


def main() -> None:
    module = SimpleNamespace(torch=torch)
    alone = torch.topk(rows_with_equal_values(torch.bfloat16), 5, dim=-1).indices
    stock = int((reported_tokens(module) != alone).any(dim=1).sum())
    order_equal_logits(module)
    ours = module.torch.topk(rows_with_equal_values(torch.bfloat16), 5).indices
    patched = int((reported_tokens(module) != ours).any(dim=1).sum())
    SWITCH.on = False
    off = torch.equal(module.torch.topk(rows_with_equal_values(torch.bfloat16), 5).indices, alone)
    SWITCH.on = True
    found = {"stock": stock, "patched": patched, "off": off, "others": module.torch.arange(2).tolist()}
    print(json.dumps(found | {"wrong": wrong_orders(), "steps": dependent_steps(), "top_p": top_p_calls()}))


if __name__ == "__main__":
    main()
