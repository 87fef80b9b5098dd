"""What docs/trace-format.md and its schemas say is what the software writes."""

import dataclasses
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from referencing import Registry, Resource

from calls.derive import derive_call
from calls.model import FORMAT, Body, Call, Exchange, Request, Response, Usage
from store.active_profiles import load_profiles
from store.bundle.bundle import CALL_MEMBERS, EFFECTS_FORMAT, Bundle, Entry, bundle_lines, load_bundle, read_bundle
from tests.store.exchanges import bundle, conversation, effect_batch, exchanges, gaps

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLE = DOCS / "trace-format.example.jsonl"
PAGE = (DOCS / "trace-format.md").read_text("utf-8")

RENAMED = {"first_byte_at": "first_byte_ns", "ended_at": "ended_ns"}
"""The trace has durations where the model has them; REST has times under the model's names."""

AS_BYTES = {"data": {"prefix", "text", "base64", "opened", "suffix", "digest"}}


@cache
def schema(name: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((DOCS / "schema" / f"{name}.schema.json").read_text("utf-8"))
    return made


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    known = Registry().with_resources(
        [(schema(each)["$id"], Resource.from_contents(schema(each))) for each in ("exchange", "call", "bundle")]
    )
    return jsonschema.Draft202012Validator(schema(name), registry=known)


def check(lines: list[bytes]) -> None:
    for line in lines:
        validator("bundle").validate(json.loads(line))


@pytest.mark.parametrize("name", ["exchange", "call", "bundle"])
def test_a_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))


@settings(max_examples=40)
@given(st.lists(exchanges, max_size=2), st.lists(gaps, max_size=2), st.integers(0, 2))
def test_every_bundle_fits_the_schema(made: list[Exchange], found: list[Any], batches: int) -> None:
    whole = dataclasses.replace(bundle(made, found), effects=tuple(map(effect_batch, range(batches))))
    check(list(bundle_lines(whole)))


def test_only_a_bundle_with_effects_has_the_new_version() -> None:
    plain, observed = bundle(conversation(1)), dataclasses.replace(bundle([]), effects=(effect_batch(0),))
    assert [json.loads(next(bundle_lines(one)))["format"] for one in (plain, observed)] == [FORMAT, EFFECTS_FORMAT]


def test_the_reader_in_the_page_reads_effects(tmp_path: Path) -> None:
    file = tmp_path / "effects.jsonl"
    whole = dataclasses.replace(bundle(conversation(1)), effects=(effect_batch(0), effect_batch(1)))
    file.write_bytes(b"".join(bundle_lines(whole)))
    done = reader(file, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "process.start" not in line][1:3] == [
        "effect time.time {} 3 at agent.py:3",
        "effect os.environ {'name': 'REGION'} 5 at agent.py:4",
    ]


def test_a_bundle_with_calls_and_references_fits_the_schema() -> None:
    profiles = load_profiles(None)
    entries = tuple(Entry(exchange=each, call=bundle_members(derive_call(each, profiles))) for each in conversation(3))
    lines = list(bundle_lines(Bundle(run={"id": "a"}, profiles=profiles.digest, entries=entries)))
    assert b'"prefix"' in lines[2]
    check(lines)


def bundle_members(call: Call) -> dict[str, Any]:
    """A call with the members that a bundle tells."""
    tool_calls = [dataclasses.asdict(tool) for tool in call.tool_calls]
    whole = msgspec.structs.asdict(call) | {"usage": dataclasses.asdict(call.usage), "tool_calls": tool_calls, "nth": 0}
    return {name: whole[name] for name in CALL_MEMBERS}


def test_the_schema_refuses_what_is_no_line() -> None:
    head = json.loads(EXAMPLE.read_bytes().splitlines()[0])
    broken: dict[str, Any]
    for broken in ({}, head | {"format": EFFECTS_FORMAT + 1}, head | {"check": "sha256:1"}, head | {"run": {}}):
        with pytest.raises(jsonschema.ValidationError):
            validator("bundle").validate(broken)


@pytest.mark.parametrize(
    ("model", "place"),
    [(Exchange, None), (Request, "request"), (Response, "response"), (Body, "body")],
)
def test_every_field_of_the_model_is_in_the_schema(model: Any, place: str | None) -> None:
    whole = schema("exchange")
    members = set((whole["$defs"][place] if place else whole)["properties"])
    for field in msgspec.structs.fields(model):
        assert AS_BYTES.get(field.name, {RENAMED.get(field.name, field.name)}) <= members


def test_every_field_of_a_call_is_in_the_schema() -> None:
    members = schema("call")["properties"]
    assert {field.name for field in msgspec.structs.fields(Call)} <= set(members)
    assert {field.name for field in dataclasses.fields(Usage)} == set(members["usage"]["properties"])
    assert set(schema("call")["required"]) | {"warnings", "nth"} == set(CALL_MEMBERS)


def test_the_example_is_a_bundle_and_fits_the_schema() -> None:
    example = load_bundle(EXAMPLE)
    assert b"".join(bundle_lines(example)) == EXAMPLE.read_bytes()
    check(EXAMPLE.read_bytes().splitlines(keepends=True))


@pytest.mark.parametrize(("what", "member"), [("line", "exchange"), ("call", "call")])
def test_the_page_shows_lines_of_the_example(what: str, member: str) -> None:
    shown = re.search(rf"<!-- {what} (\d+) -->\n\n```json\n(.*?)```", PAGE, re.DOTALL)
    assert shown
    line = EXAMPLE.read_bytes().splitlines()[int(shown[1]) - 1]
    assert json.loads(shown[2]) == json.loads(line)[member]


def test_every_member_is_explained_or_in_the_schema_under_its_name() -> None:
    for word in ("started_at", "outcome", "prefix", "suffix", "digest", "size", "chunks", "truncated", "reencoded"):
        assert f"`{word}`" in PAGE


def reader(path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code
    return subprocess.run(
        [sys.executable, "-I", "-c", code[1], str(path)], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_the_reader_in_the_page_reads_the_example_with_nothing_of_ours(tmp_path: Path) -> None:
    done = reader(EXAMPLE, tmp_path)
    assert done.returncode == 0, done.stderr
    sizes = [
        (len(each.request.body.data), len(each.response.body.data))
        for each in load_bundle(EXAMPLE).exchanges
        if each.response
    ]
    assert [(int(line.split()[2]), int(line.split()[4])) for line in done.stdout.splitlines()] == sizes


def test_the_reader_in_the_page_finds_a_flipped_byte(tmp_path: Path) -> None:
    data = bytearray(EXAMPLE.read_bytes())
    data[data.index(b"refund")] ^= 1
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(data)
    assert "line 2 is damaged" in reader(broken, tmp_path).stderr


def test_the_formats_in_the_page_are_the_one_we_write() -> None:
    assert f"# The trace format, version {EFFECTS_FORMAT}" in PAGE
    assert schema("bundle")["$defs"]["head"]["properties"]["format"]["enum"] == [FORMAT, EFFECTS_FORMAT]
    assert schema("exchange")["properties"]["format"]["const"] == FORMAT
    assert read_bundle(EXAMPLE.read_bytes().splitlines(keepends=True)).exchanges[0].format == FORMAT
