"""What the command line reads of the store server's JSON, and prints again."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.cli.common import print_json
from proxy.processes.store_client import read_json

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(plain)
def test_what_python_can_read_it_reads_likewise(value: Any) -> None:
    assert read_json(json.dumps(value)) == value


@pytest.mark.parametrize("number", ["9" * 10_000, "-" + "7" * 4301, "1E+999", "-2.5E+400"])
def test_a_number_that_python_makes_none_of_keeps_its_digits(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    read = read_json(f'{{"n": {number}}}'.encode())
    assert read == {"n": Decimal(number)}
    print_json(read)
    assert json.loads(capsys.readouterr().out) == {"n": number}


def test_nothing_else_that_is_no_json_is_printed() -> None:
    with pytest.raises(TypeError, match="object is not JSON"):
        print_json({"n": object()})
