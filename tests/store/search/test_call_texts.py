"""The texts of a call are written as its JSON was, whichever encoder writes them."""

import string
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from calls.codec.json import dumps
from calls.model import Json
from store.search.call_texts import call_texts
from tests.store.samples import call, exchange

_texts = st.text(max_size=8) | st.sampled_from(("\x00\x1f\x7f", "\u2028/", '"\\'))
_numbers = st.integers() | st.decimals(allow_nan=False, allow_infinity=False) | st.just(Decimal("1E+1000"))
_values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | _numbers | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)


@given(_values)
def test_arguments_are_written_as_all_json_is(value: Json) -> None:
    request = {"a": string.ascii_letters, "b": value}
    found = call_texts(call(exchange(0), dialect="generic", request=request, answer=None))
    assert [one.text for one in found] == [dumps(request).decode()[:16384]]
