"""Classify the executed operations by whether they can depend on the batch, and how that is checked. Pure.

Every operation that torch executes during a traced forward pass is one of: `moved` (it copies or selects values and computes
none), `exact` (each element is correctly rounded by IEEE 754 or an integer, so it has one value however it is computed),
`engine` (it mixes rows of one request by design and is checked through the engine) or `swept` (it is run at every number of
rows and compared bit by bit). An operation that cannot be swept has no verdict, and then nothing is certified.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Kind = Literal["moved", "exact", "engine", "swept"]

MOVED: Final = frozenset(
    """
    _local_scalar_dense _reshape_alias _to_copy _unsafe_view alias arange as_strided cat chunk clone contiguous copy copy_
    detach detach_ embedding empty empty_like empty_strided expand expand_as eye fill fill_ flatten flip full full_like gather
    index index_copy index_copy_ index_fill_ index_put index_put_ index_select is_pinned item lift_fresh masked_fill
    masked_fill_ masked_scatter masked_select movedim narrow new_empty new_empty_strided new_full new_ones new_zeros nonzero
    ones ones_like permute pin_memory repeat repeat_interleave reshape resize_ resolve_conj resolve_neg scalar_tensor scatter
    scatter_ select select_scatter set_ slice slice_scatter split split_with_sizes squeeze squeeze_ stack t tensor_split to
    transpose tril triu unbind unflatten unfold unsafe_split unsqueeze unsqueeze_ view view_as where zero_ zeros zeros_like
    """.split()  # noqa: SIM905 # a list of a hundred words, one a line, is longer and no clearer
)

EXACT: Final = frozenset(
    """
    abs add add_ all amax amin any argmax argmin bitwise_and bitwise_not bitwise_or bitwise_xor bucketize ceil clamp clamp_ clamp_max
    clamp_min div div_ eq floor floor_divide fmod ge gt isfinite isinf isnan le logical_and logical_not logical_or lt max
    maximum min minimum mul mul_ ne neg relu relu_ remainder round rsub searchsorted sign sqrt sub sub_ trunc
    """.split()  # noqa: SIM905 # likewise
)
"""Operations that round correctly or not at all; `add` and `sub` only without scaling, which may be one fused step."""

ENGINE: Final[Mapping[str, str]] = {
    "vllm.unified_attention_with_output": "attention over the KV cache",
    "vllm.unified_attention": "attention over the KV cache",
    "vllm.unified_kv_cache_update": "the KV cache is written",
    "_C.get_scheduler_metadata": "the description of a batch to attention",
    "_C.compute_slot_mapping_kernel_impl": "integers",
    "aten.randint": "drawn from a request's own generator, or for no seed",
    "aten.exponential_": "drawn from a request's own generator, or for no seed",
    "aten.random_": "drawn from a request's own generator, or for no seed",
}


KERNELS: Final[Mapping[str, str]] = {
    "matmul_kernel_persistent": "swept layer by layer",
    "_rms_norm_kernel": "swept layer by layer",
    "_log_softmax_kernel": "swept layer by layer",
    "bmm_kernel": "swept layer by layer",
    "mean_kernel": "swept layer by layer",
    "_matmul": "swept layer by layer",
    "_rms_norm": "swept layer by layer",
    "_log_softmax": "swept layer by layer",
    "_mean": "swept layer by layer",
    "kernel_unified_attention": "attention over the KV cache",
    "kernel_unified_attention_2d": "attention over the KV cache",
    "kernel_unified_attention_3d": "attention over the KV cache",
    "reduce_segments": "attention over the KV cache",
    "reshape_and_cache_kernel_flash": "the KV cache is written",
    "fused_moe_kernel": "experts, through the engine",
    "_topk_log_softmax_kernel": "swept by the steps of the sampler",
    "_ranks_kernel": "swept by the steps of the sampler",
    "_bias_kernel": "swept by the steps of the sampler",
    "_temperature_kernel": "swept by the steps of the sampler",
    "_min_p_kernel": "swept by the steps of the sampler",
    "_topk_topp_kernel": "swept by the steps of the sampler",
    "_penalties_kernel": "swept by the steps of the sampler",
    "_gumbel_sample_kernel": "swept by the steps of the sampler",
}
"""How Triton kernels are checked. They bypass torch's dispatcher, so their shapes are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on one operation at one shape."""

    operation: str
    shape: str
    kind: Kind | Literal["none"]
    calls: int
    sizes: tuple[int, int] | None = None
    """The first and last of the numbers of rows at which it was run; None if it did not have to be."""
    differing: tuple[int, ...] = ()
    """The numbers of rows at which a row had other bits."""
    reason: str = ""


def operation_kind(operation: str, *, integers: bool, scaled: bool) -> Kind:
    """Classify an operation. `integers`: all tensors are integers; `scaled`: an operand is multiplied first."""
    namespace, _, name = operation.partition(".")
    if operation in ENGINE:
        return "engine"
    if namespace in ("aten", "prims") and (name in MOVED or integers):
        return "moved" if name in MOVED else "exact"
    if namespace == "aten" and name in EXACT and not scaled:
        return "exact"
    return "swept"


def kernel_verdict(name: str, *, integers: bool) -> Verdict:
    """The verdict on a Triton kernel of this name. `integers`: all tensors that it got are integers."""
    known = KERNELS.get(name)
    if integers and known is None:
        return Verdict(operation=f"triton.{name}", shape="", kind="exact", calls=1)
    reason = known or "it is a Triton kernel that no check is known to cover"
    return Verdict(operation=f"triton.{name}", shape="", kind="engine" if known else "none", calls=1, reason=reason)


def symbolic_shape(shape: Sequence[int], rows: Collection[int]) -> tuple[int | str, ...]:
    """Replace the batch's dimensions of a shape by multiples of `n`. `rows`: the batch's numbers of tokens and requests."""
    return tuple(_symbol(size, rows) for size in shape)


def _symbol(size: int, rows: Collection[int]) -> int | str:
    for count in rows:
        if size and size % count == 0:
            return "n" if size == count else f"{size // count}n"
    return size


def is_distinctive(count: int, sizes: Collection[int]) -> bool:
    """Whether a dimension of this size can only come from the batch: a prime above 10 that divides no size of the model."""
    return (
        count > 10 and all(count % low for low in range(2, int(count**0.5) + 1)) and all(size % count for size in sizes)
    )


def distinctive_counts(sizes: Collection[int], low: int, high: int) -> list[int]:
    """The numbers of rows from `low` to `high` by which a trace can tell the batch from the model."""
    return [count for count in range(low, high + 1) if is_distinctive(count, sizes)]


def uncovered_operations(verdicts: Sequence[Verdict]) -> list[str]:
    """The operations without a verdict, with the reasons."""
    return [f"{each.operation} {each.shape}: {each.reason}" for each in verdicts if each.kind == "none"]


def differing_operations(verdicts: Sequence[Verdict]) -> list[str]:
    """The operations that depend on the batch, with the first number of rows at which they do."""
    return [
        f"{each.operation} {each.shape} at {each.differing[0]} rows and {len(each.differing) - 1} more"
        for each in verdicts
        if each.differing
    ]


def coverage(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Count the kinds of verdicts and list the verdicts, for `GET /batch_invariance`."""
    kinds = [each.kind for each in verdicts]
    return {
        "operations": len({each.operation for each in verdicts}),
        "shapes": len(verdicts),
        **{kind: kinds.count(kind) for kind in ("swept", "exact", "moved", "engine", "none")},
        "verdicts": [asdict(each) for each in verdicts if each.kind != "moved"],
    }
