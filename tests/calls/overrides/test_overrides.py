"""Override files: what is accepted, and the error messages for mistakes."""

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.overrides.override_toml import read_entries
from calls.overrides.overrides import (
    Arguments,
    BadOverride,
    Fault,
    Override,
    OverrideMatch,
    Patch,
    Text,
    ToolResult,
    WholeAnswer,
    clean_entries,
    read_overrides,
)


def parse_overrides(text: str, *, is_json: bool) -> tuple[Override, ...]:
    """The overrides in the text of a file."""
    return read_overrides(*read_entries(text, is_json=is_json))


FILE = """\
# what if the search had found nothing?
[[override]]
step = 3
tool_result = { tickets = [] }

[[override]]
match = { host = "api.openai.com", operation = "chat", nth = 2 }
arguments = { tool = "refund", patch = [{ op = "replace", path = "/amount", value = 5 }] }

[[override]]
step = 1
text = { find = "refund", replace = "voucher" }

[[override]]
match = { path = "/v1/*" }
fault = { status = 429, retry_after = 0.5, times = 2 }

[[override]]
step = 4
answer = { status = 503, headers = { "X-Why" = ["a", "b"] }, body = { error = "away" } }
"""


def test_a_file_of_toml_is_read_whole() -> None:
    result, arguments, text, fault, answer = parse_overrides(FILE, is_json=False)
    assert (result.step, result.change, result.line) == (3, ToolResult(value={"tickets": []}), 2)
    assert arguments.match == OverrideMatch(host="api.openai.com", operation="chat", nth=2)
    assert isinstance(arguments.change, Arguments)
    assert text.change == Text(text="voucher", find="refund")
    assert fault.change == Fault(kind="status", amount=429, times=2, retry_after=0.5)
    assert answer.change == WholeAnswer(
        status=503, headers=(("X-Why", "a"), ("X-Why", "b")), body={"error": "away"}, has_body=True
    )


def test_json_says_the_same_as_toml() -> None:
    entries = [{"step": 1, "text": "no"}, {"step": 2, "patch": [{"op": "remove", "path": "/x"}]}]
    changes = [Text(text="no"), Patch(patch=({"op": "remove", "path": "/x"},))]
    for content in ({"override": entries}, entries):
        assert [one.change for one in parse_overrides(json.dumps(content, indent=1), is_json=True)] == changes
    assert [one.change for one in read_overrides(entries)] == changes


def test_no_text_of_an_entry_keeps_its_secrets() -> None:
    entries = [{"step": 1, "answer": {"headers": {"x": "hunter2"}, "body": [{"deep": "hunter2!"}, 7]}}]
    without = clean_entries(entries, lambda text: text.replace("hunter2", "*"))
    assert without == [{"step": 1, "answer": {"headers": {"x": "*"}, "body": [{"deep": "*!"}, 7]}}]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("step = 1\ntxt = 'x'", 'unknown "txt" in an override: use step, match, answer, text'),
        ("step = 1", "it changes nothing; an override has exactly one of answer, text, arguments"),
        ("step = 1\ntext = 'x'\nfault = { timeout = 3 }", 'it has "text", "fault"'),
        ("text = 'x'", "an override needs either step = N or match"),
        ("step = 0\ntext = 'x'", "step must be a whole number of at least 1"),
        ("match = {}\ntext = 'x'", "match is empty"),
        ("match = { hosts = 'x' }\ntext = 'x'", "use host, method, path, operation, model, tool, nth"),
        ("step = 1\nanswer = { status = 99 }", "answer.status must be a final HTTP status"),
        ("step = 1\nanswer = { headers = { 'a b' = 'x' } }", "answer.headers.a b is not a valid HTTP header"),
        ("step = 1\npatch = []", "patch must be a list of RFC 6902 operations"),
        ("step = 1\npatch = [{ op = 'addne', path = '/a', value = 1 }]", "needs an op: use add, replace"),
        ("step = 1\npatch = [{ op = 'add', path = '/a' }]", 'patch[0] (add) lacks "value"'),
        ("step = 1\npatch = [{ op = 'remove', path = 'a' }]", "patch[0].path is not a JSON pointer"),
        ("step = 1\nfault = { cut = 5, status = 500 }", "fault must have exactly one of status, timeout, cut"),
        ("step = 1\nfault = { status = 200 }", "fault.status must be a status from 400 to 599"),
        ("step = 1\nfault = { cut = 5, retry_after = 1 }", "fault.retry_after is only allowed with fault.status"),
        ("step = 1\ntool_result = nan", "tool_result is nan, which JSON cannot represent"),
        ("step = 1\ntool_result = 2026-01-01", "tool_result is a date, which JSON does not have"),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_the_known_words(entry: str, words: str) -> None:
    with pytest.raises(BadOverride) as caught:
        parse_overrides(f"# first line\n[[override]]\nstep = 1\ntext = 'x'\n[[override]]\n{entry}\n", is_json=False)
    assert "line 5: override 2: " in str(caught.value)
    assert words in str(caught.value)


def test_json_names_the_line_too() -> None:
    with pytest.raises(BadOverride, match="line 3: override 2: it changes nothing"):
        parse_overrides('{"override": [\n  {"step": 1, "text": "a, ]"},\n  {"step": 2}\n]}', is_json=True)


@pytest.mark.parametrize(
    ("text", "is_json", "words"),
    [
        ("[[override]\n", False, r"invalid TOML: .*line 1"),
        ('{"override": [', True, r"invalid JSON: .*line 1"),
        ("step = 1", False, r"contains no overrides; write each one as a table \[\[override\]\]"),
        ("[[override]]\nstep=1\ntext='x'\n[fork]\n", False, '"fork" besides the overrides'),
        ("3", True, "contains no overrides"),
    ],
)
def test_a_file_that_is_none_is_refused(text: str, is_json: bool, words: str) -> None:
    with pytest.raises(BadOverride, match=words):
        parse_overrides(text, is_json=is_json)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
WORDS = st.sampled_from(["step", "match", "answer", "text", "arguments", "patch", "tool_result", "fault", "status"])


@given(st.lists(JSON | st.dictionaries(WORDS, JSON | st.dictionaries(WORDS, JSON), max_size=3), max_size=3))
def test_no_list_of_json_breaks_the_reader(entries: list[object]) -> None:
    try:
        found = read_overrides(entries)
    except BadOverride:
        return
    assert len(found) == len(entries)


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    for is_json in (True, False):
        try:
            found = parse_overrides(text, is_json=is_json)
        except BadOverride:
            continue
        assert isinstance(found, tuple)


DOCS = Path(__file__).resolve().parents[3] / "docs"


@cache
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((DOCS / "schema" / "overrides.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


MEMBERS: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "step": st.integers(-1, 3),
        "match": st.dictionaries(
            st.sampled_from(["host", "tool", "nth", "hosts"]), st.integers(0, 2) | st.text(max_size=2)
        ),
        "text": st.text(max_size=2)
        | st.fixed_dictionaries({"find": st.text(max_size=2)}, optional={"replace": st.text()}),
        "tool_result": st.none() | st.integers(),
        "patch": st.lists(
            st.fixed_dictionaries(
                {"op": st.sampled_from(["add", "remove", "move", "addne"])},
                optional={"path": st.sampled_from(["", "/a", "a"]), "value": st.none(), "from": st.just("/b")},
            ),
            max_size=2,
        ),
        "fault": st.dictionaries(
            st.sampled_from(["status", "timeout", "cut", "malformed", "slow", "times", "retry_after", "piece"]),
            st.sampled_from([True, False, 0, 1, 429, 0.5, -1, "x"]),
        ),
        "answer": st.dictionaries(
            st.sampled_from(["status", "body", "headers"]), st.sampled_from([200, 99, {}, {"a": "b"}])
        ),
    },
)


@given(st.lists(MEMBERS, max_size=2))
def test_the_schema_takes_what_the_reader_takes(entries: list[Any]) -> None:
    try:
        read_overrides(entries)
    except BadOverride:
        understood = False
    else:
        understood = True
    assert validator().is_valid(entries) == understood


def test_every_example_of_the_page_is_understood() -> None:
    page = (DOCS / "forks.md").read_text("utf-8")
    files = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`((?:answer|text|arguments|patch|tool_result|fault) = [^`]+)`", page)
    assert (len(files), len(inline)) == (2, 7)
    for text in [*files, *(f"[[override]]\nstep = 1\n{change}\n" for change in inline)]:
        parse_overrides(text, is_json=False)
        validator().validate(tomllib.loads(text))
