"""The searches for beginnings at the end of a text find what one expression for everything would find."""

from hypothesis import given, settings
from hypothesis import strategies as st

from calls.redaction.rules.credentials import RULES
from calls.redaction.rules.expression import ANYWHERE, compile_expression
from calls.redaction.rules.patterns import beginnings_expression, full_expression
from calls.redaction.rules.secret_names import BARE_NAMES, SECRET_NAMES
from calls.redaction.rules.secret_rule import SecretRule
from calls.redaction.scanning import encoded_text
from calls.redaction.scanning.scanner import CHANGEABLE, CONTEXT, RuleTable
from tests.calls.secrets import TOKENS
from tests.support.examples import many_examples

TABLE = RuleTable()
OPEN = compile_expression(rf"(?:{TABLE._beginning})\z|{TABLE._starts}").Match
ANYTHING = compile_expression(
    rf"(?:{TABLE._beginning})\z|{TABLE._starts}|[{encoded_text.CHARS}%\\]\z|{encoded_text.IN_WHOLE}"
).Match
ENCODED = compile_expression(
    rf"{encoded_text.ESCAPE_BEGINNING}\z|{encoded_text.IN_SPELLED_TEXT}|{encoded_text.TEXT_RUN_BEGINNING}\z"
).Match
GROUP = compile_expression(rf"{encoded_text.TEXT_GROUP_BEGINNING}\z").Match


def changeable(rule: SecretRule) -> str:
    lead, begin = full_expression(rule.lead), full_expression(rule.begin)
    return rf"{lead}(?:{begin}|(?:{beginnings_expression(rule.begin)})\z)" if rule.begin else lead


CHANGEABLE_PART = compile_expression(TABLE._join(changeable)).Match

NAMES = [name.replace("~", "_") for name in (*SECRET_NAMES, *BARE_NAMES)]
parts = st.one_of(
    st.sampled_from(
        [*NAMES, "token", "key", "value", "://user:", "eyJhbGciOi", "QmVhcmVyIHNr", "\\n", "%2D", "\\u002d"]
    ),
    st.sampled_from(
        [": ", '"', "=", " is ", ") values (", " ", "\n", ",", "the next word", "--", "<", ">", "12345678"]
    ),
    st.builds(lambda token, size: token[:size], st.sampled_from(TOKENS), st.integers(1, 12)),
    st.text("aAgspk_-.:/ 0\\%=", max_size=4),
)
samples = st.builds(
    lambda first, rest: (first + "".join(rest)).encode(), st.sampled_from('"\na-'), st.lists(parts, max_size=6)
)


@settings(max_examples=many_examples(1000), deadline=None)
@given(samples)
def test_the_first_secret_or_beginning_is_that_of_one_search(text: bytes) -> None:
    for at in {0, 1, len(text) // 2}:
        assert [TABLE.find_first(text, at, last=False)] == OPEN(ANYWHERE, text, at, len(text))


def find_changeable(text: bytes, at: int) -> int:
    while text[-2:-1] == b"\\" and text[-1:] in b"bfnrt" and text[-3:-2] != b"\\":
        text = text[:-2]
    ((start, _),) = CHANGEABLE_PART(ANYWHERE, text, at, len(text))
    return int(start)


@settings(max_examples=many_examples(1000), deadline=None)
@given(samples)
def test_what_may_change_begins_where_one_search_finds_it(text: bytes) -> None:
    for at in {0, 1, len(text) // 2}:
        assert TABLE.find_changeable(text, at) == find_changeable(text, at)


def test_a_table_of_one_rule_holds_back_nothing_but_its_beginnings() -> None:
    for rule in (RULES[0], next(rule for rule in RULES if not rule.is_bounded and rule.begin)):
        table = RuleTable([rule])
        assert table.find_name(b'"a plain sentence, ') == -1
        assert table.find_first(b'"a plain sentence, ', 0, last=False) == (-1, -1)


@settings(max_examples=many_examples(1000), deadline=None)
@given(samples)
def test_a_piece_passes_if_one_search_finds_nothing(text: bytes) -> None:
    assert TABLE.can_pass(text) == (ANYTHING(ANYWHERE, text, 0, len(text)) == [(-1, -1)])


@settings(max_examples=many_examples(1000), deadline=None)
@given(samples)
def test_a_name_in_a_models_output_is_found_as_by_separate_searches(text: bytes) -> None:
    size = len(text)
    ((start, _),) = OPEN(ANYWHERE, text, 1, size)
    if ENCODED(ANYWHERE, text, 0, size) != [(-1, -1)] or (start >= 0 and find_changeable(text, 1) >= 0):
        expected = CHANGEABLE
    else:
        expected = start if GROUP(ANYWHERE, text, 0, size) == [(-1, -1)] else CONTEXT
    assert TABLE.find_name(text) == expected
