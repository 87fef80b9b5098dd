"""Explain how a key was made: which fields are in it, left out, renamed or normalized, and by which rule."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from calls.codec.json import dumps
from calls.codec.lenient_json import as_object
from calls.keys.divergence import shorten_pointer
from calls.keys.key import KeyResult
from calls.keys.key_selection import pointer_to
from calls.model import Json

type Fate = Literal["key", "left out", "renamed", "folded", "unknown"]

PREVIEW: Final = 80
"""The number of characters of a value that are shown."""

RULES: Final[Mapping[str, str]] = {
    "transient": "declared transient: affects how the answer is sent, not its content",
    "identity": "declared identity: who sends the request, not what it asks",
    "secret": "declared secret",
    "unknown": "no rule classifies it, and the profile leaves such fields out",
    "telemetry": "the service only receives reports: no answer depends on it",
    "null": "null is the same as a missing member",
    "nonce": "a line that is generated anew for each request",
    "default": "the API's default value is the same as a missing member",
    "place": "account ids and the choice of a streamed answer in the path do not count",
    "text": "a single text part is the same as its text",
    "message": "a single user message of text is the same as its text",
    "single": "a list of one is the same as its only element",
    "bare": "an object with only an id is the same as the id",
    "json": "the string contains JSON and counts by its value",
    "number": "the number of a request counts by its first occurrence",
    "bytes": "the string contains base64 and counts by the digest of its bytes",
    "graphql": "white space, commas and comments of a GraphQL document do not count",
    "schema": "schema keywords in camelCase or snake_case and types in any case are the same",
    "names": "a name in snake_case is the same as in camelCase",
    "answers": "answers to calls count in the order of the calls",
    "own": "names here are defined by the user and are not changed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationRow:
    """One place of a request and its part in the key."""

    pointer: str
    """Shortened for display."""
    fate: Fate
    rule: str
    """The reason, as text."""
    value: str = ""
    """The value in the key as JSON, shortened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A key, and every place of the request that is in it or left out of it."""

    key: str
    strict: str
    """The strict key."""
    profile: str
    dialect: str
    operation: str
    rows: tuple[ExplanationRow, ...]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Json]:
        """Return the explanation as JSON, for the CLI's `--json` and REST."""
        rows: list[Json] = [
            {"pointer": row.pointer, "fate": row.fate, "rule": row.rule, "value": row.value or None}
            for row in self.rows
        ]
        return {
            "key": self.key,
            "strict": self.strict,
            "profile": self.profile,
            "dialect": self.dialect,
            "operation": self.operation,
            "rows": rows,
            "warnings": list(self.warnings),
        }


def explain_key(key: KeyResult) -> Explanation:
    """Explain how a key was made."""
    return Explanation(
        key=key.key,
        strict=key.strict_key,
        profile=key.profile,
        dialect=key.dialect,
        operation=key.operation,
        rows=(*_key_rows(key), *_normalized_rows(key), *_left_out_rows(key)),
        warnings=key.warnings,
    )


def _key_rows(key: KeyResult) -> Iterator[ExplanationRow]:
    """Yield the parts of the head and the members of the body that are in the key."""
    unknown = set(key.notes.unknown_pointers)
    for name, value in as_object(key.selected_fields).items():
        fields = as_object(value) if name in ("body", "headers") else {}
        if value in (None, {}, []):
            continue
        if not fields:
            yield _key_row(pointer_to(("", name)), value, unknown)
        for field, inner in fields.items():
            yield _key_row(pointer_to((("", name), field)), inner, unknown)


def _key_row(at: str, value: Json, unknown: set[str]) -> ExplanationRow:
    if at in unknown:
        return ExplanationRow(
            pointer=shorten_pointer(at),
            fate="unknown",
            rule="no rule classifies it, so it counts",
            value=_preview(value),
        )
    return ExplanationRow(pointer=shorten_pointer(at), fate="key", rule="load-bearing", value=_preview(value))


def _normalized_rows(key: KeyResult) -> Iterator[ExplanationRow]:
    for note in key.normalized_fields:
        yield ExplanationRow(pointer=shorten_pointer(note.pointer), fate="folded", rule=RULES[note.rule])
    for id_ in key.renamed_ids:
        rule = "an id that only links parts of the request counts by its first occurrence"
        yield ExplanationRow(
            pointer=shorten_pointer(id_.pointer),
            fate="renamed",
            rule=rule,
            value=f"{shorten_pointer(id_.was)} → {id_.now}",
        )


def _left_out_rows(key: KeyResult) -> Iterator[ExplanationRow]:
    for note in key.left_out_fields:
        yield ExplanationRow(pointer=shorten_pointer(note.pointer), fate="left out", rule=RULES[note.rule])
    yield ExplanationRow(pointer="/headers/*", fate="left out", rule="headers count only if the profile declares them")


def _preview(value: Json) -> str:
    text = dumps(value).decode()
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"
