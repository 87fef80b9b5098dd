"""Every operation has a verdict or is listed as one without."""

import pytest
from playhead_inference.operations import (
    KERNELS,
    Verdict,
    coverage,
    differing_operations,
    distinctive_counts,
    is_distinctive,
    kernel_verdict,
    operation_kind,
    symbolic_shape,
    uncovered_operations,
)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten.view", "moved"),
        ("aten.mul", "exact"),
        ("aten.silu", "swept"),
        ("aten.mean", "swept"),
        ("aten.rsqrt", "swept"),
        ("_C.onednn_mm", "swept"),
        ("_C.an_operation_of_tomorrow", "swept"),
        ("vllm.unified_attention_with_output", "engine"),
    ],
)
def test_what_is_not_known_to_be_harmless_is_swept(operation: str, kind: str) -> None:
    assert operation_kind(operation, integers=False, scaled=False) == kind


def test_a_sum_is_exact_for_integers_and_an_addition_only_without_a_factor() -> None:
    assert operation_kind("aten.sum", integers=True, scaled=False) == "exact"
    assert operation_kind("aten.sum", integers=False, scaled=False) == "swept"
    assert operation_kind("aten.add", integers=False, scaled=False) == "exact"
    assert operation_kind("aten.add", integers=False, scaled=True) == "swept"


def test_a_number_tells_the_batch_from_the_model_where_no_size_is_its_multiple() -> None:
    sizes = {64, 256, 896, 4096, 13 * 8}
    assert not is_distinctive(7, sizes)
    assert not is_distinctive(13, sizes)
    assert not is_distinctive(15, sizes)
    assert distinctive_counts(sizes, 11, 20) == [11, 17, 19]


def test_a_shape_shows_what_is_the_batch_s() -> None:
    assert symbolic_shape((211, 64), (211, 11)) == ("n", 64)
    assert symbolic_shape((22, 2), (211, 11)) == ("2n", 2)
    assert symbolic_shape((256, 64), (211, 11)) == (256, 64)


def verdict(kind: str, **more: object) -> Verdict:
    return Verdict(operation="aten.silu", shape="n×8", kind=kind, calls=1, **more)  # type: ignore[arg-type] # a test's words


def test_what_has_no_verdict_and_what_differs_is_named() -> None:
    found = [verdict("swept", differing=(33, 34)), verdict("none", reason="it cannot be run"), verdict("moved")]
    assert uncovered_operations(found) == ["aten.silu n×8: it cannot be run"]
    assert differing_operations(found) == ["aten.silu n×8 at 33 rows and 1 more"]
    classes = coverage(found)
    assert (classes["shapes"], classes["swept"], classes["none"], classes["moved"]) == (3, 1, 1, 1)
    assert [each["kind"] for each in classes["verdicts"]] == ["swept", "none"]


def test_a_triton_kernel_that_no_check_covers_has_no_verdict() -> None:
    assert kernel_verdict("a_kernel_of_tomorrow", integers=False).kind == "none"
    assert {kernel_verdict(name, integers=False).kind for name in KERNELS} == {"engine"}


def test_a_triton_kernel_that_got_only_integers_is_exact() -> None:
    assert kernel_verdict("a_kernel_of_tomorrow", integers=True).kind == "exact"
