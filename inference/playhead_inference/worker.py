"""What the self-check asks of each worker. vLLM mixes this class into its own worker."""

import hashlib
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

import torch

from playhead_inference.gpu import asked
from playhead_inference.switch import SWITCH, Seen

ROWS: Final = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64)
"""Batch sizes at which every layer is compared with itself: kernels change their mind at small ones and at powers of two."""

MORE: Final = (127, 128, 256, 512, 1024)
"""And the larger ones, once for each shape."""


class Witness:
    """Added to vLLM's worker; every name is ours, since vLLM refuses to overwrite its own."""

    model_runner: Any

    def playhead_patch(self, on: bool) -> None:
        """Turn our attention off for the positive control, and on again."""
        if on != SWITCH.on:
            SWITCH.on, SWITCH.seen = on, Seen()

    def playhead_seen(self) -> dict[str, int]:
        """What our attention has met since it was last turned on."""
        return asdict(SWITCH.seen)

    def playhead_layers(self) -> dict[str, Any]:
        """Every layer whose one row depends, in any bit, on how many rows were computed with it."""
        model = self.model_runner.get_model()
        seen: set[tuple[Any, ...]] = set()
        differing, swept = [], 0
        with torch.inference_mode():
            for name, shape, width, apply in _layers(model):
                rows = ROWS if shape in seen else ROWS + MORE
                seen.add(shape)
                swept += 1
                if not _invariant(apply, width, _dtype(model), _device(model), rows):
                    differing.append(name)
        return {"swept": swept, "differing": differing}

    def playhead_facts(self) -> dict[str, Any]:
        """What the answers of this worker depend on besides the request."""
        model = self.model_runner.get_model()
        config = self.model_runner.vllm_config
        return {
            "device": _device_name(_device(model)),
            "isa": torch.backends.cpu.get_cpu_capability() if _device(model).type == "cpu" else _capability(),
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "dtype": str(_dtype(model)).removeprefix("torch."),
            "attention": _attention(config),
            "block_size": config.cache_config.block_size,
            "tensor_parallel": config.parallel_config.tensor_parallel_size,
            "torch": str(torch.__version__),
            "weights": _weights(model),
            "mode": _own_mode(),
            "kernels": asked() if _device(model).type != "cpu" else None,
        }


def _layers(model: Any) -> Iterator[tuple[str, tuple[Any, ...], int, Callable[[Any], Any]]]:
    """Name, shape, width of the input and the call, of every layer that reduces over a row."""
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for name, module in model.named_modules():
        if isinstance(module, LinearBase):
            yield name, (type(module).__name__, *module.weight.shape), module.input_size, _called(module)
        elif isinstance(module, ParallelLMHead):
            yield name, ("head", *module.weight.shape), module.embedding_dim, _head(module)
        elif isinstance(module, RMSNorm):
            yield name, ("norm", module.hidden_size), module.hidden_size, module
            # Another kernel on a GPU, whose blocks some versions of vLLM choose by the number of rows.
            yield f"{name}, residual", ("sum", module.hidden_size), module.hidden_size, _summed(module)
    vocabulary = model.config.vocab_size
    yield "log_softmax", ("log_softmax",), vocabulary, lambda rows: rows.log_softmax(dim=-1, dtype=torch.float32)
    yield "softmax", ("softmax",), vocabulary, lambda rows: rows.softmax(dim=-1, dtype=torch.float32)


def _called(module: Any) -> Callable[[Any], Any]:
    """A linear layer as the model calls it: some go past their `quant_method`."""

    def call(rows: Any) -> Any:
        out = module(rows)
        return out[0] if isinstance(out, tuple) else out

    return call


def _summed(module: Any) -> Callable[[Any], Any]:
    return lambda rows: module(rows, rows.clone())[0]


def _head(module: Any) -> Callable[[Any], Any]:
    return lambda rows: module.quant_method.apply(module, rows, None)


def _invariant(apply: Callable[[Any], Any], width: int, dtype: Any, device: Any, rows: tuple[int, ...]) -> bool:
    """Whether a row comes out with the same bits, alone and among others, first and last."""
    drawn = torch.randn(max(rows), width, generator=torch.Generator().manual_seed(1)).to(dtype).to(device)
    row = drawn[:1].clone()
    alone = apply(row.clone())[0].clone()
    for count in rows:
        batch = drawn[:count].clone()
        first = apply(batch)[0]
        batch = drawn[:count].flip(0).clone()
        last = apply(batch)[-1]
        if not (torch.equal(first, alone) and torch.equal(last, alone)):
            return False
    return True


def _dtype(model: Any) -> Any:
    return next(model.parameters()).dtype


def _device(model: Any) -> Any:
    return next(model.parameters()).device


def _device_name(device: Any) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    with open("/proc/cpuinfo") as info:
        return next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), "cpu")


def _capability() -> str:
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def _attention(config: Any) -> list[str]:
    """The backends in use, by their classes: a registration that did not take shows here."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention import Attention

    layers = get_layers_from_vllm_config(config, Attention).values()
    found = {layer.get_attn_backend() for layer in layers}
    return sorted(f"{backend.__module__}.{backend.__qualname__}" for backend in found)


def _weights(model: Any) -> str:
    """A digest of every parameter, as it lies in memory."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        if value.numel():
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return f"sha256:{digest.hexdigest()}"


def _own_mode() -> bool:
    """Whether vLLM's own batch-invariant mode is on in this process."""
    from vllm.model_executor.determinism import batch_invariant

    return bool(batch_invariant._batch_invariant_MODE)
