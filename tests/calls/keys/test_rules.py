"""The tree of rules finds what python-jsonpath finds, and deeper rules win."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.codec.json import dumps
from calls.keys.jsonpath import parse_path
from calls.keys.key_selection import Selection, pointer_to
from calls.keys.rules import Rule, RuleAtPath, compile_rules, normalize_path, rule_tree
from calls.model import Json

names = st.sampled_from(["a", "b", "c/~", "0", "type"])

values: st.SearchStrategy[Json] = st.recursive(
    st.integers(0, 9) | st.sampled_from(["x", "y"]),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=10,
)
type_names: st.SearchStrategy[Json] = st.sampled_from(["x", "y", 1, ["x"]])


def with_type(item: dict[str, Json], name: Json) -> Json:
    return {**item, "type": name}


typed = st.builds(with_type, st.dictionaries(names, values, max_size=2), type_names)
mixed: st.SearchStrategy[Json] = st.one_of(
    values, st.lists(typed | values, max_size=4), st.dictionaries(names, typed, max_size=3)
)

steps = st.sampled_from(
    [
        "['a']",
        "['b']",
        "['c/~']",
        "[*]",
        "[0]",
        "[1]",
        "[-1]",
        "[0:2]",
        "..['a']",
        "..[0]",
        "[?@.a]",
        "[?@.type == 'x']",
        "[?@.type == 'y']",
    ]
)
paths = st.lists(steps, min_size=1, max_size=3).map(lambda parts: "$" + "".join(parts))


def walk(body: Json, *rules: tuple[str, Rule], keep_unknown: bool = True) -> tuple[Json, Selection]:
    plan = compile_rules(RuleAtPath(path=path, rule=rule) for path, rule in rules)
    selection = Selection(keep_unknown=keep_unknown)
    return selection.select_body(body, rule_tree(plan, body, dumps(body).__contains__), ""), selection


def without(body: Any, places: set[str], at: str = "") -> Any:
    """Return the body without these places, in the simplest way."""
    match body:
        case dict():
            inner = {name: f"{at}/{name.replace('~', '~0').replace('/', '~1')}" for name in body}
            return {name: without(body[name], places, inner[name]) for name in body if inner[name] not in places}
        case list():
            return [without(item, places, f"{at}/{n}") for n, item in enumerate(body) if f"{at}/{n}" not in places]
        case _:
            return body


@given(mixed, paths)
def test_a_path_means_what_the_library_says_it_means(body: Json, path: str) -> None:
    places = {pointer_of(match.parts) for match in parse_path(path).finditer(body)}  # type: ignore[arg-type] # bare scalars
    kept, _ = walk(body, ("$", "key"), (path, "transient"))
    assert kept == without(body, places)
    assert normalize_path(path) == str(parse_path(path))


def pointer_of(parts: tuple[str | int, ...]) -> str:
    at: Any = ""
    for part in parts:
        at = (at, part)
    return pointer_to(at)


@given(mixed, st.lists(paths, max_size=3), st.lists(paths, max_size=3))
def test_nothing_is_dropped_in_silence(body: Json, keys: list[str], transients: list[str]) -> None:
    rules: list[tuple[str, Rule]] = [*((path, "key") for path in keys), *((path, "transient") for path in transients)]
    kept, selection = walk(body, *rules)
    noted = {note.pointer for note in selection.notes.left_out_fields}
    if "" not in noted:
        assert kept == without(body, noted)


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ((("$.a", "key"),), {"a": {"x": 1, "y": [1, 2]}, "b": 2}),
        ((("$.a", "key"), ("$.b", "transient")), {"a": {"x": 1, "y": [1, 2]}}),
        ((("$.a", "key"), ("$.a.x", "transient"), ("$.b", "key")), {"a": {"y": [1, 2]}, "b": 2}),
        ((("$.a", "transient"), ("$.a.x", "key"), ("$.b", "identity")), {"a": {"x": 1}}),
        ((("$.*", "transient"), ("$.a", "key")), {"a": {"x": 1, "y": [1, 2]}}),
        ((("$.a", "key"), ("$.*", "transient")), {"a": {"x": 1, "y": [1, 2]}}),
        ((("$", "key"), ("$.a.y[0]", "transient")), {"a": {"x": 1, "y": [2]}, "b": 2}),
    ],
)
def test_the_deepest_rule_wins_and_a_name_before_a_wildcard(rules: tuple[tuple[str, Rule], ...], kept: Json) -> None:
    assert walk({"a": {"x": 1, "y": [1, 2]}, "b": 2}, *rules)[0] == kept


def test_a_type_s_own_rule_wins_before_that_of_every_element_and_joins_it() -> None:
    items: Json = [{"type": "x", "id": 1, "status": 1}, {"type": "y", "id": 1, "status": 1}, {"type": ["x"], "id": 1}]
    rules: list[tuple[str, Rule]] = [("$", "key"), ("$[*].status", "transient"), ("$[?@.type == 'x'].id", "transient")]
    assert walk(items, *rules)[0] == [{"type": "x"}, {"type": "y", "id": 1}, {"type": ["x"], "id": 1}]
    # The same if an element is named by its index, or found by a search.
    for more in ("$[0].other", "$[?@.id == 1].other"):
        assert walk(items, *rules, (more, "transient"))[0] == walk(items, *rules)[0]


def test_unknown_fields_are_named_where_they_stand() -> None:
    _, selection = walk({"a": {"x": 1, "y": 2}, "b/c": 1}, ("$.a.x", "key"))
    assert selection.notes.unknown_pointers == ("/a/y", "/b~1c")


def test_unknown_fields_can_be_left_out() -> None:
    kept, selection = walk({"a": 1, "b": 2}, ("$.a", "key"), keep_unknown=False)
    assert kept == {"a": 1}
    assert [(note.pointer, note.rule) for note in selection.notes.left_out_fields] == [("/b", "unknown")]


def test_a_body_of_another_shape_than_the_rules_expect_is_taken_whole() -> None:
    for body in ([1], "x", 3, None, {"messages": "no list"}):
        assert walk(body, ("$.messages[*].content", "text"), ("$", "key"))[0] == body
