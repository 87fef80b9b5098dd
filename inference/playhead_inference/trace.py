"""Record every operation that a worker executes, and run each at every number of rows that it may get.

A dispatch mode of torch sees each operation with its arguments. While it records, no size of the model is a multiple of the
batch's number of tokens or of requests, so that shapes show which dimensions belong to the batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from playhead_inference.operations import Verdict, is_distinctive, kernel_verdict, operation_kind, symbolic_shape
from playhead_inference.switch import BLOCK

MIN_ROWS: Final[Mapping[str, int]] = {"_C.onednn_mm": 2}
"""The minimum rows of operations for which matmul.py guarantees one."""

IN_BLOCKS: Final = frozenset(("_C.onednn_mm", "_C.cpu_fused_moe"))
"""Operations that get at most BLOCK rows from matmul.py; elementwise.py splits rows inside its functions."""

SIZES_LISTED: Final = 16
"""Maximum number of differing sizes that a verdict lists."""


@dataclass(slots=True, kw_only=True)
class RecordedOperation:
    """One operation at one shape, with the arguments of its first call."""

    operation: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: tuple[int, ...]
    """The numbers of tokens and requests of the batch."""
    per_token: bool
    """True if a dimension was the number of tokens, in a step with another number of requests."""
    kind: str
    calls: int = 0


@dataclass(slots=True)
class Trace:
    """The recorded operations, by name and shape."""

    sizes: frozenset[int]
    """Dimensions of the model's weights."""
    operations: dict[tuple[str, str], RecordedOperation] = field(default_factory=dict)
    steps: list[tuple[int, int]] = field(default_factory=list)
    """The numbers of tokens and requests of each recorded step."""
    kernels: dict[str, bool] = field(default_factory=dict)
    """The Triton kernels, which bypass torch's dispatcher, and whether all of their tensors were integers in each launch."""
    skipped: int = 0
    """The number of steps not recorded, because their sizes could have been the model's."""

    @contextmanager
    def recording(self, tokens: int, requests: int) -> Iterator[None]:
        """Record a step, if its sizes tell the batch from the model."""
        if not (is_distinctive(tokens, self.sizes) and is_distinctive(requests, self.sizes)):
            self.skipped += 1
            yield
            return
        self.steps.append((tokens, requests))
        with _Recorder(self, tokens, requests), _collect_triton_kernels(self.kernels):
            yield

    def add_call(self, operation: Any, args: Any, kwargs: Any, tokens: int, requests: int) -> None:
        """Add a call before it is made, because it may write into its arguments."""
        rows = tuple(dict.fromkeys((tokens, requests)))
        shapes = [tuple(each.shape) for each in _tensors((args, kwargs))]
        symbolic = [symbolic_shape(shape, rows) for shape in shapes]
        if not any(isinstance(size, str) for shape in symbolic for size in shape):
            return
        namespace, _, name = str(operation).partition(".")
        name = f"{namespace}.{name.split('.')[0]}"
        key = (name, ", ".join("×".join(map(str, shape)) for shape in symbolic))
        found = self.operations.get(key)
        if found is None:
            kind = operation_kind(name, integers=_is_integral((args, kwargs)), scaled=kwargs.get("alpha", 1) != 1)
            # Only operations that are run again need their arguments.
            arguments = (_copy_batch_rows(args, rows), _copy_batch_rows(kwargs, rows)) if kind == "swept" else ((), {})
            found = self.operations[key] = RecordedOperation(
                operation=operation,
                name=name,
                args=arguments[0],
                kwargs=arguments[1],
                rows=rows,
                per_token=False,
                kind=kind,
            )
        found.calls += 1
        found.per_token |= tokens != requests and any(shape and shape[0] % tokens == 0 for shape in shapes)

    def verdicts(self, tokens: int, requests: int) -> list[Verdict]:
        """Sweep the operations: those per token up to `tokens` rows, and those per request up to `requests` rows."""
        found = [
            _operation_verdict(found, shape, tokens if found.per_token else requests)
            for (_, shape), found in self.operations.items()
        ]
        return found + [kernel_verdict(name, integers=integers) for name, integers in sorted(self.kernels.items())]


@contextmanager
def _collect_triton_kernels(kernels: dict[str, bool]) -> Iterator[None]:
    """Collect the launched Triton kernels and whether they got only integers, if Triton is installed."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield
        return
    run = JITFunction.run

    def run_and_record(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = self.fn.__name__
        kernels[name] = kernels.get(name, True) and _is_integral((args, kwargs))
        return run(self, *args, **kwargs)

    JITFunction.run = run_and_record
    try:
        yield
    finally:
        JITFunction.run = run


class _Recorder(TorchDispatchMode):
    """Adds each operation to a trace."""

    def __init__(self, trace: Trace, tokens: int, requests: int) -> None:
        super().__init__()
        self.trace, self.tokens, self.requests = trace, tokens, requests

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # torch's
        self.trace.add_call(func, args, kwargs or {}, self.tokens, self.requests)
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [found for each in value for found in _tensors(each)] if isinstance(value, (list, tuple)) else []


def _is_integral(value: Any) -> bool:
    return not any(each.is_floating_point() or each.is_complex() for each in _tensors(value))


def _copy_batch_rows(value: Any, rows: Sequence[int]) -> Any:
    """Copy the tensors that have rows of the batch; weights are shared."""
    if isinstance(value, torch.Tensor):
        return _clone(value) if _rows_per_item(value, rows) else value
    if isinstance(value, Mapping):
        return {name: _copy_batch_rows(each, rows) for name, each in value.items()}
    return type(value)(_copy_batch_rows(each, rows) for each in value) if isinstance(value, (list, tuple)) else value


def _clone(value: Any) -> Any:
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def _rows_per_item(value: Any, rows: Sequence[int]) -> int:
    """The number of rows of this tensor per row of the batch; 0 if its first dimension is not the batch's."""
    if not value.dim() or not value.shape[0]:
        return 0
    return next((value.shape[0] // count for count in rows if value.shape[0] % count == 0), 0)


class _CannotSweep(Exception):
    """The operation cannot be run with another number of rows."""


def _operation_verdict(recorded: RecordedOperation, shape: str, most: int) -> Verdict:
    common: dict[str, Any] = {"operation": recorded.name, "shape": shape, "calls": recorded.calls}
    if recorded.kind != "swept":
        return Verdict(kind=recorded.kind, **common)  # type: ignore[arg-type] # a Kind
    least = MIN_ROWS.get(recorded.name, 1)
    most = min(most, BLOCK) if recorded.name in IN_BLOCKS else most
    try:
        differing = _differing_row_counts(recorded, least, most)
    except (_CannotSweep, AssertionError, RuntimeError, ValueError, TypeError, IndexError) as error:
        return Verdict(kind="none", reason=f"it cannot be run at other numbers of rows ({error})"[:300], **common)
    return Verdict(kind="swept", sizes=(least, most), differing=tuple(differing[:SIZES_LISTED]), **common)


def _differing_row_counts(recorded: RecordedOperation, least: int, most: int) -> list[int]:
    """The numbers of rows at which a row, first or last in the batch, has other bits than with the maximum of rows."""
    draw = torch.Generator().manual_seed(1)
    pool = _ArgumentPool(recorded, most, draw)
    reference = pool.run(0, most)
    differing = []
    with torch.inference_mode():
        for count in range(least, most):
            at = 0 if count % 2 else most - count
            if not _is_same(reference, pool.run(at, count), at, count):
                differing.append(count)
    return differing


def _is_same(reference: Sequence[tuple[Any, int]], results: Sequence[tuple[Any, int]], at: int, count: int) -> bool:
    return len(results) == len(reference) and all(
        _is_equal(whole[at * each : (at + count) * each], part)
        for (whole, each), (part, _) in zip(reference, results, strict=True)
    )


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two tensors are equal bit by bit. NaN equals itself."""
    if torch.equal(one, other):
        return True
    return bool(one.is_floating_point() and torch.equal(one.nan_to_num(7), other.nan_to_num(7)))


class _ArgumentPool:
    """Random arguments with as many rows as the largest batch, similar to the recorded ones."""

    def __init__(self, recorded: RecordedOperation, most: int, draw: Any) -> None:
        self.recorded, self.most, self.draw = recorded, most, draw
        self.rows_of: dict[int, tuple[Any, int]] = {}
        for value in _tensors((recorded.args, recorded.kwargs)):
            if each := _rows_per_item(value, recorded.rows):
                self.rows_of[id(value)] = (self._draw_rows(value, each), each)
        if not self.rows_of:
            raise _CannotSweep("no argument begins with the dimension of the batch")
        written_places = [
            argument.alias_info is not None and argument.alias_info.is_write
            for argument in _positional_arguments(recorded)
        ]
        self.written_places = [at for at, is_written in enumerate(written_places) if is_written]

    def _draw_rows(self, value: Any, each: int) -> Any:
        if value.dim() > 1 and value.stride(0) < max(value.stride()[1:]):
            raise _CannotSweep("the batch is not its outermost dimension")
        count = self.most * each
        drawn = torch.empty_strided((count, *value.shape[1:]), value.stride(), dtype=value.dtype, device=value.device)
        if value.is_floating_point():
            noise = torch.randn((count, *value.shape[1:]), generator=self.draw)
            mean, spread = _mean_and_spread(value)
            return drawn.copy_(noise * spread + mean)
        return drawn.copy_(value[torch.arange(count, device=value.device) % len(value)])

    def run(self, at: int, count: int) -> list[tuple[Any, int]]:
        """Run the operation, and return every tensor that it returns or writes, with its rows per row of the batch."""
        args, kwargs = self._cut_rows(self.recorded.args, at, count), self._cut_rows(self.recorded.kwargs, at, count)
        returned = self.recorded.operation(*args, **kwargs)
        results = _tensors([returned]) + [args[place] for place in self.written_places if place < len(args)]
        cut = [(value, _rows_per_item(value, (count,)) or 0) for value in results if isinstance(value, torch.Tensor)]
        if not cut or not all(each for _, each in cut):
            raise _CannotSweep("its result does not begin with the dimension of the batch")
        return [(value.clone(), each) for value, each in cut]

    def _cut_rows(self, value: Any, at: int, count: int) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self.rows_of:
                return value
            drawn, each = self.rows_of[id(value)]
            return _clone(drawn[at * each : (at + count) * each])
        if isinstance(value, Mapping):
            return {name: self._cut_rows(inner, at, count) for name, inner in value.items()}
        return (
            type(value)(self._cut_rows(inner, at, count) for inner in value)
            if isinstance(value, (list, tuple))
            else value
        )


def _positional_arguments(recorded: RecordedOperation) -> Sequence[Any]:
    return [each for each in recorded.operation._schema.arguments if not each.kwarg_only]


def _mean_and_spread(value: Any) -> tuple[float, float]:
    """The mean and spread of the finite values, so that a masked row does not make all drawn rows infinite."""
    finite = value[value.isfinite()].float()
    return (float(finite.mean()), float(finite.std()) or 1.0) if finite.numel() > 1 else (0.0, 1.0)


def trace_method(method: Callable[..., Any], trace: Callable[[], Trace | None], counts: Callable[..., Any]) -> Any:
    """Wrap a method so that it is recorded while there is a trace. `counts` returns a call's tokens and requests."""

    def call_and_trace(*args: Any, **kwargs: Any) -> Any:
        recorder = trace()
        if recorder is None:
            return method(*args, **kwargs)
        with recorder.recording(*counts(*args, **kwargs)):
            return method(*args, **kwargs)

    return call_and_trace
