"""A spec is read, or refused with its line."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.checking.spec import KINDS, BadSpec, parse_spec


def test_rules_have_their_lines_and_names() -> None:
    text = '# rules\n\n[[rule]]\nkind = "forbid"\ntools = ["x"]\n\n[[rule]]\nname = "cheap"\nkind = "budget"\nmax_steps = 3\n'
    assert [(rule.title, rule.line) for rule in parse_spec(text)] == [("forbid", 3), ("cheap", 7)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no rules: write each as a table [[rule]], or make a spec with playhead check --init RUN"),
        ("[[rule]]\nkind = ", "invalid TOML"),
        ("x = 1", "unknown 'x': a spec has only [[rule]] tables"),
        ("rule = 1", "it has no rules"),
        ("\n[[rule]]\nname = 'x'", "line 2: a rule without `kind`; There are tools, require"),
        ("[[rule]]\nkind = 'tool'", "line 1: unknown kind of rule 'tool'; did you mean 'tools'?"),
        ("[[rule]]\nkind = 'tools'", "line 1: tools: it needs `tools`"),
        ("[[rule]]\nkind = 'forbid'\ntoolz = ['x']", "line 1: forbid: unknown member 'toolz'; did you mean 'tools'?"),
        ("[[rule]]\nkind = 'forbid'", "line 1: forbid: give either `tools`, or one or more of"),
        ("[[rule]]\nkind = 'forbid'\ntools = ['x']\nhosts = ['y']", "give either `tools`, or one or more of"),
        ("[[rule]]\nkind = 'only'", "give one or more of `tools`, `hosts` and `models`"),
        ("[[rule]]\nkind = 'require'\ntools = ['x']\nmin = 3\nmax = 2", "`min` must be 0 or more, and not above `max`"),
        ("[[rule]]\nkind = 'budget'", "give one or more of `max_cost_usd`"),
        ("[[rule]]\nkind = 'budget'\nmax_steps = -1", "a budget cannot be negative"),
        ("[[rule]]\nkind = 'budget'\nmax_steps = 'x'", "Expected `int | null`, got `str` at `max_steps`"),
        ("[[rule]]\nkind = 'argument'\ntool = 'x'\nat = 'id'", "invalid path 'id'"),
        ("[[rule]]\nkind = 'argument'\ntool = 'x'\nat = '$.id'\noptional = true", "it demands nothing"),
        ("[[rule]]\nkind = 'argument'\ntool = 'x'\nat = '$.id'\nis = { pattern = '(' }", "invalid pattern '('"),
        ("[[rule]]\nkind = 'argument'\ntool = 'x'\nat = '$.id'\nis = { typ = 'string' }", "unknown member 'typ'"),
        ("[[rule]]\nkind = 'target'\ntools = ['x']\nallow = ['y']", "a target of `tools` needs `at`"),
        ("[[rule]]\nkind = 'answer'", "it demands nothing"),
        ("[[rule]]\nkind = 'answer'\nschema = { type = 'obj' }", "invalid schema"),
        (
            "[[rule]]\nkind = 'answer'\nschema = { '$ref' = 'http://127.0.0.1:9/s.json' }",
            "invalid schema: http://127.0.0.1:9/s.json is not in it",
        ),
        ("[[rule]]\nkind = 'grounded'\ncitation = 'doc'", "has no group"),
        (
            "[[rule]]\nkind = 'same'\ntool = 'x'\nat = '$'\nsource = {}",
            "exactly one of `result_of`, `argument_of` and `user`",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(BadSpec) as raised:
        parse_spec(text)
    assert message in str(raised.value)


def mistake(text: str) -> str | None:
    """What is wrong with a spec; None if it is valid."""
    try:
        parse_spec(text)
    except BadSpec as error:
        return str(error)
    return None


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert mistake(text) != ""


@given(
    kind=st.sampled_from(sorted(KINDS)),
    members=st.dictionaries(
        st.sampled_from(["tools", "at", "max", "tool", "citation", "schema", "allow", "source"]),
        st.sampled_from(["'('", "[]", "1", "{}", "'$..['"]),
    ),
)
def test_any_members_are_read_or_refused(kind: str, members: dict[str, str]) -> None:
    lines = [f"{name} = {value}" for name, value in members.items()]
    found = mistake("\n".join(["[[rule]]", f"kind = '{kind}'", *lines]))
    assert found is None or found.startswith("line 1: ")


def test_the_rules_that_the_docs_show_are_valid() -> None:
    page = (Path(__file__).parents[3] / "docs" / "check.md").read_text("utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert [len(parse_spec(block)) for block in blocks] == [4]
    assert all(f"| `{kind}` |" in page for kind in KINDS)
