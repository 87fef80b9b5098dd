"""Extend vLLM's worker by the methods that the self-check calls in it."""

import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

import torch

from playhead_inference.cache import cpu_digest
from playhead_inference.gpu import kernel_choice
from playhead_inference.operations import coverage, differing_operations, distinctive_counts, uncovered_operations
from playhead_inference.sampler import differing_steps
from playhead_inference.switch import BLOCK, SWITCH, Seen
from playhead_inference.trace import Trace, trace_method

ROWS: Final = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64)
"""Batch sizes at which every layer is tested. Kernels switch their method at small sizes and at powers of two."""

MORE_ROWS: Final = (127, 128, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 1024)
"""Larger batch sizes, tested once for each shape: those at which matmul.py begins another piece."""

MOST_REQUESTS: Final = 256
"""Requests of the largest batch in which the sampler's steps are tested. One program computes one request or a part of it."""


class WorkerExtension:
    """Methods that vLLM mixes into its worker. Their names have a prefix, because vLLM refuses to overwrite its own."""

    model_runner: Any

    def playhead_patch(self, on: bool) -> None:
        """Turn the patch off for the positive control, and on again."""
        if on != SWITCH.on:
            SWITCH.on, SWITCH.seen = on, Seen()

    def playhead_seen(self) -> dict[str, Any]:
        """The batches that the patched attention has computed since it was last turned on."""
        return asdict(SWITCH.seen) | {"sizes": sorted(SWITCH.seen.sizes)}

    def playhead_trace(self, on: bool) -> dict[str, Any]:
        """Start or stop the trace. Return the numbers of tokens and requests that a step must have to be recorded."""
        sizes = _model_sizes(self.model_runner.get_model())
        if on and not hasattr(self, "_playhead_trace"):
            self._playhead_trace: Trace | None = None
            self._playhead_step = (0, 0)
            self._record_steps()
        self._playhead_trace = Trace(sizes) if on else self._playhead_trace
        self._playhead_tracing = on
        return {"tokens": distinctive_counts(sizes, 150, BLOCK), "requests": distinctive_counts(sizes, 11, 100)}

    def _record_steps(self) -> None:
        runner = self.model_runner

        def trace() -> Trace | None:
            return self._playhead_trace if self._playhead_tracing else None

        def counts(scheduled: Any, *_: Any, **__: Any) -> tuple[int, int]:
            self._playhead_step = (scheduled.total_num_scheduled_tokens, len(scheduled.num_scheduled_tokens))
            return self._playhead_step

        runner.execute_model = trace_method(runner.execute_model, trace, counts)
        runner.sample_tokens = trace_method(runner.sample_tokens, trace, lambda *_, **__: self._playhead_step)

    def playhead_steps(self) -> list[tuple[int, int]]:
        """The tokens and requests of the recorded steps."""
        return list(self._playhead_trace.steps) if self._playhead_trace else []

    def playhead_sweep(self) -> dict[str, Any]:
        """Run each recorded operation at every number of rows that this configuration allows."""
        from vllm.forward_context import set_forward_context

        trace = self._playhead_trace
        if trace is None:
            return {"differing": [], "uncovered": ["nothing was traced"]}
        config = self.model_runner.vllm_config
        scheduler = config.scheduler_config
        # A mixture of experts on a GPU is one operation, which looks up its layer in this context.
        with set_forward_context(None, config):
            verdicts = trace.verdicts(scheduler.max_num_batched_tokens, scheduler.max_num_seqs)
        self._playhead_trace = None
        steps = sorted({tuple(step) for step in trace.steps})
        return {
            "differing": differing_operations(verdicts),
            "uncovered": uncovered_operations(verdicts),
            "steps": steps,
            **coverage(verdicts),
        }

    def playhead_layers(self) -> dict[str, Any]:
        """Find the layers in which a row depends, in any bit, on the number of rows computed with it."""
        model = self.model_runner.get_model()
        seen: set[tuple[Any, ...]] = set()
        differing: list[str] = []
        swept = 0
        with torch.inference_mode():
            for name, shape, width, apply in _row_layers(model):
                rows = ROWS if shape in seen else ROWS + MORE_ROWS
                seen.add(shape)
                swept += 1
                if not _is_row_invariant(apply, width, _dtype(model), _device(model), rows):
                    differing.append(name)
            if self._has_second_runner():
                steps, found = self._differing_steps()
                swept += steps
                differing += found
        return {"swept": swept, "shapes": len(seen), "differing": differing}

    def _has_second_runner(self) -> bool:
        return bool(self.model_runner.vllm_config.use_v2_model_runner)

    def _differing_steps(self) -> tuple[int, list[str]]:
        """The number of the sampler's steps, and those in which a request depends on the others."""
        model, config = self.model_runner.get_model(), self.model_runner.vllm_config
        most = min(config.scheduler_config.max_num_seqs, MOST_REQUESTS)
        return differing_steps(config.model_config.get_vocab_size(), most, _dtype(model), _device(model))

    def playhead_facts(self) -> dict[str, Any]:
        """The facts on which this worker's answers depend besides the request."""
        model = self.model_runner.get_model()
        config = self.model_runner.vllm_config
        return {
            "device": _device_name(_device(model)),
            "isa": torch.backends.cpu.get_cpu_capability() if _device(model).type == "cpu" else _gpu_capability(),
            "machine": platform.machine(),
            "cpu": cpu_digest() if _device(model).type == "cpu" else None,
            "threads": torch.get_num_threads(),
            "dtype": str(_dtype(model)).removeprefix("torch."),
            "attention": _attention_backends(config),
            "block_size": config.cache_config.block_size,
            "tensor_parallel": config.parallel_config.tensor_parallel_size,
            "torch": str(torch.__version__),
            "mode": _is_batch_invariant_mode(),
            "kernels": kernel_choice() if _device(model).type != "cpu" else None,
        }


def _row_layers(model: Any) -> Iterator[tuple[str, tuple[Any, ...], int, Callable[[Any], Any]]]:
    """The name, shape, input width and call of every layer that reduces over a row."""
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for name, module in model.named_modules():
        if isinstance(module, LinearBase):
            # The weight has no useful shape: packing leaves it empty.
            shape = (type(module).__name__, module.input_size, module.output_size)
            yield name, shape, module.input_size, _layer_call(module)
        elif isinstance(module, ParallelLMHead):
            yield name, ("head", module.embedding_dim, module.org_vocab_size), module.embedding_dim, _head_call(module)
        elif isinstance(module, RMSNorm):
            yield name, ("norm", module.hidden_size), module.hidden_size, module
            # On a GPU this is another kernel, whose blocks some versions of vLLM choose by the number of rows.
            yield f"{name}, residual", ("sum", module.hidden_size), module.hidden_size, _residual_norm_call(module)
    vocabulary = model.config.vocab_size
    yield "log_softmax", ("log_softmax",), vocabulary, lambda rows: rows.log_softmax(dim=-1, dtype=torch.float32)
    yield "softmax", ("softmax",), vocabulary, lambda rows: rows.softmax(dim=-1, dtype=torch.float32)


def _layer_call(module: Any) -> Callable[[Any], Any]:
    """Call a linear layer as the model does, because some layers bypass their `quant_method`."""

    def call(rows: Any) -> Any:
        out = module(rows)
        return out[0] if isinstance(out, tuple) else out

    return call


def _residual_norm_call(module: Any) -> Callable[[Any], Any]:
    return lambda rows: module(rows, rows.clone())[0]


def _head_call(module: Any) -> Callable[[Any], Any]:
    return lambda rows: module.quant_method.apply(module, rows, None)


def _is_row_invariant(apply: Callable[[Any], Any], width: int, dtype: Any, device: Any, rows: tuple[int, ...]) -> bool:
    """Whether a row has the same bits alone and among others, as the first and the last one."""
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


def _gpu_capability() -> str:
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def _attention_backends(config: Any) -> list[str]:
    """The classes of the attention backends in use, which show whether the patched one was registered."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention import Attention

    layers = get_layers_from_vllm_config(config, Attention).values()
    found = {layer.get_attn_backend() for layer in layers}
    return sorted(f"{backend.__module__}.{backend.__qualname__}" for backend in found)


def _model_sizes(model: Any) -> frozenset[int]:
    """All dimensions of the model: those of its weights, and the integer attributes of its layers for packed weights."""
    found = {size for value in model.state_dict().values() for size in value.shape}
    for module in model.modules():
        found |= {value for value in vars(module).values() if type(value) is int}
    return frozenset(size for size in found if size > 1)


def _is_batch_invariant_mode() -> bool:
    """Whether vLLM's own batch-invariant mode is on in this process."""
    from vllm.model_executor.determinism import batch_invariant

    return bool(batch_invariant._batch_invariant_MODE)
