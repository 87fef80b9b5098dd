"""Untrusted YAML: only plain values are created, within limits."""

import subprocess
import sys

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from store.foreign.yamlvalues import NO_ITEMS, BadYaml, UnknownTag, members
from tests.support.examples import many_examples


def value_of(text: str) -> object:
    [(_, value)] = members(f"value: {text}\n".encode())
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1.5", -1.5),
        ("true", True),
        ("'true'", "true"),
        ("~", None),
        ("", None),
        ("2026-01-01", "2026-01-01"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        ("!!binary aGk=", b"hi"),
        ("!binary aGk=", b"hi"),
        ("!!python/unicode 'x'", "x"),
        ("!!python/tuple [1, 2]", [1, 2]),
        ("!!python/object/apply:multidict._multidict.istr [Accept]", "Accept"),
        ("!!python/object/new:multidict._multidict.istr {args: [Accept]}", "Accept"),
        ("!!python/object/new:_io.BytesIO {state: [!!binary aGk=, 0, null]}", b"hi"),
        ("!!python/object/apply:builtins.iter {args: [[a, b]]}", ["a", "b"]),
        ("[&a {b: 1}, *a]", [{"b": 1}, {"b": 1}]),
    ],
)
def test_what_recorders_write_is_read_as_plain_values(text: str, value: object) -> None:
    assert value_of(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system [touch /tmp/pwned]",
        "!!python/object/new:subprocess.Popen [[true]]",
        "!!python/name:os.system ''",
        "!!python/module:os ''",
        "!ruby/object:Gem::Installer {}",
    ],
)
def test_an_object_is_named_and_never_made(text: str) -> None:
    assert isinstance(value_of(text), UnknownTag)


def test_items_come_one_by_one_before_the_rest_is_read() -> None:
    found = members(b"interactions:\n- 1\n- 2\n- [broken\n")
    assert next(found) == ("interactions", 1)
    assert next(found) == ("interactions", 2)
    with pytest.raises(BadYaml, match="invalid on line"):
        next(found)


def test_what_follows_in_a_second_document_is_not_lost() -> None:
    assert list(members(b"interactions:\n- 1\n...\n---\ninteractions:\n- 2\n")) == [
        ("interactions", 1),
        ("interactions", 2),
    ]


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 20)]
    with pytest.raises(BadYaml, match="its aliases expand to more than"):
        list(members("\n".join(lines).encode()))


def test_an_alias_of_itself_is_refused() -> None:
    with pytest.raises(BadYaml, match="has no anchor before it"):
        value_of("&a [*a]")


def test_brackets_without_end_are_refused_and_do_not_crash_the_interpreter() -> None:
    # PyYAML's own C loaders overflow the stack here: in a process of its own, so that a crash fails one test only.
    program = (
        "from store.foreign.yamlvalues import BadYaml, members\n"
        "try: list(members(b'a: ' + b'[' * 500_000))\n"
        "except BadYaml as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "it is nested deeper than 100 levels")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(values, max_size=3))
def test_what_pyyaml_dumps_is_read_again(wanted: list[object]) -> None:
    dumped = yaml.dump({"interactions": wanted}, Dumper=yaml.SafeDumper).encode()
    assert [value for _, value in members(dumped)] == (wanted or [NO_ITEMS])


@settings(max_examples=many_examples(200))
@given(st.binary(max_size=80) | st.text(st.sampled_from("-:[]{}&*!|>'\" \nab1#%@`?"), max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        list(members(data))
    except BadYaml:
        pass
