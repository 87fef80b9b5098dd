"""Record every operation that a worker executes, and run each at every number of rows that it may be given.

A dispatch mode of torch sees each operation with its arguments. While it records, the scheduler's batch has a number of
tokens and of requests that no size of the model is a multiple of, so that shapes show which dimensions are the batch's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from playhead_inference.operations import Verdict, is_telling, kernel_verdict, kind_of, symbolic_shape
from playhead_inference.switch import BLOCK

LEAST: Final[Mapping[str, int]] = {"_C.onednn_mm": 2}
"""The fewest rows an operation is given, where matmul.py sees to it."""

IN_BLOCKS: Final = frozenset(("_C.onednn_mm", "_C.cpu_fused_moe"))
"""Operations that matmul.py gives at most BLOCK rows; elementwise.py does it for its own inside."""

SHOWN: Final = 16
"""How many differing sizes a verdict names."""


@dataclass(slots=True, kw_only=True)
class Recorded:
    """One operation at one shape, with the arguments of its first call."""

    operation: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: tuple[int, ...]
    """Tokens and requests of the batch."""
    per_token: bool
    """Whether a dimension was the number of tokens in a step that had another number of requests."""
    kind: str
    calls: int = 0


@dataclass(slots=True)
class Trace:
    """What has been recorded, by operation and shape."""

    sizes: frozenset[int]
    """Dimensions of the model's weights."""
    operations: dict[tuple[str, str], Recorded] = field(default_factory=dict)
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Tokens and requests of each recorded step."""
    kernels: set[str] = field(default_factory=set)
    """Triton kernels, which are launched past torch's dispatcher."""
    skipped: int = 0
    """Steps that were not recorded, since their sizes could have been the model's."""

    @contextmanager
    def recording(self, tokens: int, requests: int) -> Iterator[None]:
        """Record a step, if its numbers tell the batch from the model."""
        if not (is_telling(tokens, self.sizes) and is_telling(requests, self.sizes)):
            self.skipped += 1
            yield
            return
        self.steps.append((tokens, requests))
        with _Recorder(self, tokens, requests), _triton_kernels(self.kernels):
            yield

    def saw(self, operation: Any, args: Any, kwargs: Any, tokens: int, requests: int) -> None:
        """Add a call before it is made, since it may write into its arguments."""
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
            kind = kind_of(name, integers=_is_integral((args, kwargs)), scaled=kwargs.get("alpha", 1) != 1)
            # Arguments are needed only of what is run again.
            kept = (_copied(args, rows), _copied(kwargs, rows)) if kind == "swept" else ((), {})
            found = self.operations[key] = Recorded(
                operation=operation,
                name=name,
                args=kept[0],
                kwargs=kept[1],
                rows=rows,
                per_token=False,
                kind=kind,
            )
        found.calls += 1
        found.per_token |= tokens != requests and any(shape and shape[0] % tokens == 0 for shape in shapes)

    def verdicts(self, tokens: int, requests: int) -> list[Verdict]:
        """Run what must be run: per token up to so many rows, and per request up to so many."""
        found = [
            _verdict(found, shape, tokens if found.per_token else requests)
            for (_, shape), found in self.operations.items()
        ]
        return found + [kernel_verdict(name) for name in sorted(self.kernels)]


@contextmanager
def _triton_kernels(names: set[str]) -> Iterator[None]:
    """Collect the names of the Triton kernels that are launched, where there is Triton."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield
        return
    run = JITFunction.run

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        names.add(self.fn.__name__)
        return run(self, *args, **kwargs)

    JITFunction.run = recorded
    try:
        yield
    finally:
        JITFunction.run = run


class _Recorder(TorchDispatchMode):
    """Tells a trace of each operation."""

    def __init__(self, trace: Trace, tokens: int, requests: int) -> None:
        super().__init__()
        self.trace, self.tokens, self.requests = trace, tokens, requests

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # torch's
        self.trace.saw(func, args, kwargs or {}, self.tokens, self.requests)
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [found for each in value for found in _tensors(each)] if isinstance(value, (list, tuple)) else []


def _is_integral(value: Any) -> bool:
    return not any(each.is_floating_point() or each.is_complex() for each in _tensors(value))


def _copied(value: Any, rows: Sequence[int]) -> Any:
    """Copies of what has rows of the batch; weights as they are."""
    if isinstance(value, torch.Tensor):
        return _clone(value) if _multiple(value, rows) else value
    if isinstance(value, Mapping):
        return {name: _copied(each, rows) for name, each in value.items()}
    return type(value)(_copied(each, rows) for each in value) if isinstance(value, (list, tuple)) else value


def _clone(value: Any) -> Any:
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def _multiple(value: Any, rows: Sequence[int]) -> int:
    """How many rows of this tensor belong to one of the batch; 0 where its first dimension is not the batch's."""
    if not value.dim() or not value.shape[0]:
        return 0
    return next((value.shape[0] // count for count in rows if value.shape[0] % count == 0), 0)


class _Unsweepable(Exception):
    """This operation cannot be run with another number of rows."""


def _verdict(found: Recorded, shape: str, most: int) -> Verdict:
    common: dict[str, Any] = {"operation": found.name, "shape": shape, "calls": found.calls}
    if found.kind != "swept":
        return Verdict(kind=found.kind, **common)  # type: ignore[arg-type] # a Kind
    least = LEAST.get(found.name, 1)
    most = min(most, BLOCK) if found.name in IN_BLOCKS else most
    try:
        differing = _swept(found, least, most)
    except (_Unsweepable, RuntimeError, ValueError, TypeError, IndexError) as error:
        return Verdict(kind="none", reason=f"it cannot be run at other numbers of rows ({error})"[:300], **common)
    return Verdict(kind="swept", sizes=(least, most), differing=tuple(differing[:SHOWN]), **common)


def _swept(found: Recorded, least: int, most: int) -> list[int]:
    """Numbers of rows at which a row has other bits than among the most, at the front or at the end of the batch."""
    draw = torch.Generator().manual_seed(1)
    pool = _Pool(found, most, draw)
    reference = pool.run(0, most)
    differing = []
    with torch.inference_mode():
        for count in range(least, most):
            at = 0 if count % 2 else most - count
            if not _same(reference, pool.run(at, count), at, count):
                differing.append(count)
    return differing


def _same(reference: Sequence[tuple[Any, int]], results: Sequence[tuple[Any, int]], at: int, count: int) -> bool:
    return len(results) == len(reference) and all(
        _equal(whole[at * each : (at + count) * each], part)
        for (whole, each), (part, _) in zip(reference, results, strict=True)
    )


def _equal(one: Any, other: Any) -> bool:
    """To the bit; NaN is equal to itself."""
    if torch.equal(one, other):
        return True
    return bool(one.is_floating_point() and torch.equal(one.nan_to_num(7), other.nan_to_num(7)))


class _Pool:
    """Arguments with as many rows as the largest batch, drawn to look like the recorded ones."""

    def __init__(self, found: Recorded, most: int, draw: Any) -> None:
        self.found, self.most, self.draw = found, most, draw
        self.drawn: dict[int, tuple[Any, int]] = {}
        for value in _tensors((found.args, found.kwargs)):
            if each := _multiple(value, found.rows):
                self.drawn[id(value)] = (self._rows(value, each), each)
        if not self.drawn:
            raise _Unsweepable("no argument begins with the dimension of the batch")
        written = [argument.alias_info is not None and argument.alias_info.is_write for argument in _arguments(found)]
        self.written = [at for at, is_written in enumerate(written) if is_written]

    def _rows(self, value: Any, each: int) -> Any:
        if value.dim() > 1 and value.stride(0) < max(value.stride()[1:]):
            raise _Unsweepable("the batch is not its outermost dimension")
        count = self.most * each
        drawn = torch.empty_strided((count, *value.shape[1:]), value.stride(), dtype=value.dtype, device=value.device)
        if value.is_floating_point():
            noise = torch.randn((count, *value.shape[1:]), generator=self.draw)
            mean, spread = _likeness(value)
            return drawn.copy_(noise * spread + mean)
        return drawn.copy_(value[torch.arange(count, device=value.device) % len(value)])

    def run(self, at: int, count: int) -> list[tuple[Any, int]]:
        """Everything with rows that the operation returns or writes, each with its rows to one of the batch."""
        args, kwargs = self._cut(self.found.args, at, count), self._cut(self.found.kwargs, at, count)
        returned = self.found.operation(*args, **kwargs)
        results = _tensors([returned]) + [args[place] for place in self.written if place < len(args)]
        cut = [(value, _multiple(value, (count,)) or 0) for value in results if isinstance(value, torch.Tensor)]
        if not cut or not all(each for _, each in cut):
            raise _Unsweepable("its result does not begin with the dimension of the batch")
        return [(value.clone(), each) for value, each in cut]

    def _cut(self, value: Any, at: int, count: int) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self.drawn:
                return value
            drawn, each = self.drawn[id(value)]
            return _clone(drawn[at * each : (at + count) * each])
        if isinstance(value, Mapping):
            return {name: self._cut(inner, at, count) for name, inner in value.items()}
        return (
            type(value)(self._cut(inner, at, count) for inner in value) if isinstance(value, (list, tuple)) else value
        )


def _arguments(found: Recorded) -> Sequence[Any]:
    return [each for each in found.operation._schema.arguments if not each.kwarg_only]


def _likeness(value: Any) -> tuple[float, float]:
    """Mean and spread of what is finite, so that a masked row does not make every drawn one infinite."""
    finite = value[value.isfinite()].float()
    return (float(finite.mean()), float(finite.std()) or 1.0) if finite.numel() > 1 else (0.0, 1.0)


def traced_method(method: Callable[..., Any], trace: Callable[[], Trace | None], counts: Callable[..., Any]) -> Any:
    """A method that is recorded while there is a trace. `counts` gives the tokens and requests of a call's batch."""

    def traced(*args: Any, **kwargs: Any) -> Any:
        recorder = trace()
        if recorder is None:
            return method(*args, **kwargs)
        with recorder.recording(*counts(*args, **kwargs)):
            return method(*args, **kwargs)

    return traced
