"""What the self-check asks of each worker. vLLM mixes this class into its own worker."""

import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

import torch

from playhead_inference.cache import cpu_digest
from playhead_inference.gpu import asked
from playhead_inference.operations import coverage, differing, telling_counts, uncovered
from playhead_inference.switch import BLOCK, SWITCH, Seen
from playhead_inference.trace import Trace, traced_method

ROWS: Final = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64)
"""Batch sizes at which every layer is compared with itself: kernels change their mind at small ones and at powers of two."""

MORE: Final = (127, 128, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 1024)
"""And the larger ones, once for each shape: where matmul.py begins another piece."""


class Witness:
    """Added to vLLM's worker; every name is ours, since vLLM refuses to overwrite its own."""

    model_runner: Any

    def playhead_patch(self, on: bool) -> None:
        """Turn our attention off for the positive control, and on again."""
        if on != SWITCH.on:
            SWITCH.on, SWITCH.seen = on, Seen()

    def playhead_seen(self) -> dict[str, Any]:
        """What our attention has met since it was last turned on."""
        return asdict(SWITCH.seen) | {"sizes": sorted(SWITCH.seen.sizes)}

    def playhead_trace(self, on: bool) -> dict[str, Any]:
        """Record what is executed from now on, or stop. How many tokens and requests a step must have to be recorded."""
        sizes = _sizes(self.model_runner.get_model())
        if on and not hasattr(self, "_playhead_trace"):
            self._playhead_trace: Trace | None = None
            self._playhead_step = (0, 0)
            self._record_steps()
        self._playhead_trace = Trace(sizes) if on else self._playhead_trace
        self._playhead_tracing = on
        return {"tokens": telling_counts(sizes, 150, BLOCK), "requests": telling_counts(sizes, 11, 100)}

    def _record_steps(self) -> None:
        runner = self.model_runner

        def trace() -> Trace | None:
            return self._playhead_trace if self._playhead_tracing else None

        def counts(scheduled: Any, *_: Any, **__: Any) -> tuple[int, int]:
            self._playhead_step = (scheduled.total_num_scheduled_tokens, len(scheduled.num_scheduled_tokens))
            return self._playhead_step

        runner.execute_model = traced_method(runner.execute_model, trace, counts)
        runner.sample_tokens = traced_method(runner.sample_tokens, trace, lambda *_, **__: self._playhead_step)

    def playhead_steps(self) -> list[tuple[int, int]]:
        """Tokens and requests of the steps that were recorded."""
        return list(self._playhead_trace.steps) if self._playhead_trace else []

    def playhead_sweep(self) -> dict[str, Any]:
        """Run each recorded operation at every number of rows that this configuration allows."""
        trace = self._playhead_trace
        if trace is None:
            return {"differing": [], "uncovered": ["nothing was traced"]}
        scheduler = self.model_runner.vllm_config.scheduler_config
        verdicts = trace.verdicts(scheduler.max_num_batched_tokens, scheduler.max_num_seqs)
        self._playhead_trace = None
        steps = sorted({tuple(step) for step in trace.steps})
        return {
            "differing": differing(verdicts),
            "uncovered": uncovered(verdicts),
            "steps": steps,
            **coverage(verdicts),
        }

    def playhead_layers(self) -> dict[str, Any]:
        """Every layer whose one row depends, in any bit, on how many rows were computed with it."""
        model = self.model_runner.get_model()
        seen: set[tuple[Any, ...]] = set()
        differing: list[str] = []
        swept = 0
        with torch.inference_mode():
            for name, shape, width, apply in _layers(model):
                rows = ROWS if shape in seen else ROWS + MORE
                seen.add(shape)
                swept += 1
                if not _invariant(apply, width, _dtype(model), _device(model), rows):
                    differing.append(name)
        return {"swept": swept, "shapes": len(seen), "differing": differing}

    def playhead_facts(self) -> dict[str, Any]:
        """What the answers of this worker depend on besides the request."""
        model = self.model_runner.get_model()
        config = self.model_runner.vllm_config
        return {
            "device": _device_name(_device(model)),
            "isa": torch.backends.cpu.get_cpu_capability() if _device(model).type == "cpu" else _capability(),
            "machine": platform.machine(),
            "cpu": cpu_digest() if _device(model).type == "cpu" else None,
            "threads": torch.get_num_threads(),
            "dtype": str(_dtype(model)).removeprefix("torch."),
            "attention": _attention(config),
            "block_size": config.cache_config.block_size,
            "tensor_parallel": config.parallel_config.tensor_parallel_size,
            "torch": str(torch.__version__),
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
            # Not the weight's shape: a packed weight is left empty.
            shape = (type(module).__name__, module.input_size, module.output_size)
            yield name, shape, module.input_size, _called(module)
        elif isinstance(module, ParallelLMHead):
            yield name, ("head", module.embedding_dim, module.org_vocab_size), module.embedding_dim, _head(module)
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


def _sizes(model: Any) -> frozenset[int]:
    """Every dimension that comes from the model: of its weights, and what its layers say of weights that were packed."""
    found = {size for value in model.state_dict().values() for size in value.shape}
    for module in model.modules():
        found |= {value for value in vars(module).values() if type(value) is int}
    return frozenset(size for size in found if size > 1)


def _own_mode() -> bool:
    """Whether vLLM's own batch-invariant mode is on in this process."""
    from vllm.model_executor.determinism import batch_invariant

    return bool(batch_invariant._batch_invariant_MODE)
