"""Explain how a key was made: what went in, what was left out, renamed or normalized, and by which rule."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from calls.codec.json import dumps
from calls.codec.lenient_json import members
from calls.keys.divergence import readable
from calls.keys.key import KeyResult
from calls.keys.key_selection import pointer
from calls.model import Json

type Fate = Literal["key", "left out", "renamed", "folded", "unknown"]

PREVIEW: Final = 80
"""How many characters of a value are shown."""

RULES: Final[Mapping[str, str]] = {
    "transient": "declared transient: how the answer is sent, not what it says",
    "identity": "declared identity: whose request it is, not what it asks",
    "secret": "declared secret",
    "unknown": "no list names it, and the profile leaves such fields out",
    "told": "the service is told, and not asked: nobody's answer depends on it",
    "null": "null is the same as not there",
    "nonce": "a line that the client makes anew for every request",
    "default": "what the API takes where nothing is given is the same as nothing",
    "place": "whose account it is, and whether the answer is a stream, is not what is asked",
    "text": "a single text part is the same as its text",
    "message": "a single text of the user is the same as that text",
    "single": "a list of one is the same as that one",
    "bare": "an object of an id alone is the same as the id",
    "json": "the string holds JSON, and counts by its value",
    "bytes": "the string holds bytes in base64, and counts by their digest",
    "graphql": "blanks, commas and comments of a GraphQL document mean nothing",
    "schema": "a schema's keywords in camelCase and its types in capitals are the same as in another spelling",
    "names": "a name in snake_case is the same as in camelCase",
    "own": "names here are the user's own, and stay as they are",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One place of a request, and what became of it."""

    pointer: str
    """Short enough to read."""
    fate: Fate
    rule: str
    """Why, in words."""
    value: str = ""
    """What went in, as JSON, cut to a glance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A key, and every place that had a part in it or was kept from one."""

    key: str
    strict: str
    """The key of all that the request says, under no profile."""
    profile: str
    dialect: str
    operation: str
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Json]:
        """The same as JSON, for the CLI's `--json` and REST."""
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


def explain(keyed: KeyResult) -> Explanation:
    """How this key came about."""
    return Explanation(
        key=keyed.key,
        strict=keyed.strict,
        profile=keyed.profile,
        dialect=keyed.dialect,
        operation=keyed.operation,
        rows=(*_went_in(keyed), *_changed(keyed), *_stayed_out(keyed)),
        warnings=keyed.warnings,
    )


def _went_in(keyed: KeyResult) -> Iterator[Row]:
    """The head, and the body by its members: finer is for a diff."""
    unknown = set(keyed.notes.unknown)
    for name, value in members(keyed.selected).items():
        fields = members(value) if name in ("body", "headers") else {}
        if value in (None, {}, []):
            continue
        if not fields:
            yield _row(pointer(("", name)), value, unknown)
        for field, inner in fields.items():
            yield _row(pointer((("", name), field)), inner, unknown)


def _row(at: str, value: Json, unknown: set[str]) -> Row:
    if at in unknown:
        return Row(pointer=readable(at), fate="unknown", rule="no list names it, so it counts", value=_glance(value))
    return Row(pointer=readable(at), fate="key", rule="load-bearing", value=_glance(value))


def _changed(keyed: KeyResult) -> Iterator[Row]:
    for note in keyed.folded:
        yield Row(pointer=readable(note.pointer), fate="folded", rule=RULES[note.rule])
    for id_ in keyed.renamed:
        rule = "an id that only ties parts together counts by where it occurs first"
        yield Row(pointer=readable(id_.pointer), fate="renamed", rule=rule, value=f"{readable(id_.was)} → {id_.now}")


def _stayed_out(keyed: KeyResult) -> Iterator[Row]:
    for note in keyed.left_out:
        yield Row(pointer=readable(note.pointer), fate="left out", rule=RULES[note.rule])
    yield Row(pointer="/headers/*", fate="left out", rule="no header counts unless the profile declares it")


def _glance(value: Json) -> str:
    text = dumps(value).decode()
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"
