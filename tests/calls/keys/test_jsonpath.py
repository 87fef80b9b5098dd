"""Expressions in paths are matched in linear time, because requests choose the texts."""

import pytest

from calls.keys.jsonpath import parse_own_path, parse_path
from calls.keys.places import BadPath
from calls.keys.profile import has_match
from calls.model import Json


@pytest.mark.parametrize(
    ("path", "document", "found"),
    [
        ("$[?search(@.a, 'b.d')]", [{"a": "xbcd"}, {"a": "x"}, {"a": 1}], [{"a": "xbcd"}]),
        ("$[?match(@.a, 'b.d')]", [{"a": "bcd"}, {"a": "xbcd"}], [{"a": "bcd"}]),
        ("$[?match(@.a, 'é')]", [{"a": "é"}], [{"a": "é"}]),
        ("$[?search(@.a, '[')]", [{"a": "["}], []),
        ("$[?search(@.a, @.b)]", [{"a": "b", "b": "^.$"}, {"a": "b", "b": "("}], [{"a": "b", "b": "^.$"}]),
        ("$[?search(@.a, 'a')]", [{"a": "\ud800a"}], [{"a": "\ud800a"}]),
    ],
)
def test_expressions_match_as_the_standard_says(path: str, document: list[Json], found: list[Json]) -> None:
    assert [match.value for match in parse_path(path).finditer(document)] == found


@pytest.mark.parametrize(
    "path",
    [
        "$[?match(@.a, '(?!x).*')].b",
        "$.a[?@.c == 1 && search(@.b, '(')]",
        "$[?!search(@.a, '(a)\\\\1')]",
        "$[?@[?search(@.a, '[')]]",
        "$[?count(@[?search(@.a, '[')]) > 1]",
    ],
)
def test_an_expression_that_a_user_wrote_and_that_can_match_nothing_is_refused(path: str) -> None:
    with pytest.raises(BadPath, match="no expression of RE2"):
        parse_own_path(path)


@pytest.mark.parametrize("path", ["$[?search(@.a, '^(a|b)+$')].b", "$.a[?search(@.b, @.c)]", "$.a"])
def test_an_expression_that_can_match_is_accepted(path: str) -> None:
    parse_own_path(path)


@pytest.mark.timeout(20)
def test_an_expression_that_backtracks_takes_no_time() -> None:
    document = [{"a": "a" * 10_000 + "!"}]
    for path in (
        "$[?search(@.a, '(a+)+$')]",
        "$[?match(@.a, '(a|a)*b')]",
        "$[?search(@.a, '((((a{90}){90}){90}){90})')]",
    ):
        assert not parse_path(path).findall(document)


@pytest.mark.timeout(20)
def test_asterisks_match_anything_in_linear_time() -> None:
    assert has_match(("/v2/*/b*/c",), "/v2/a/b/b1/c/c")
    assert has_match(("*.example", "a*"), "x.example")
    assert has_match(("*",), "any\nthing")
    assert has_match(("a**b",), "ab")
    assert not has_match(("/v2/*/b/*",), "/v2/b/c")
    assert not has_match(("a*a*",), "a")
    assert not has_match(("*a*a*a*a*a*a*a*b",), "a" * 30_000)
