"""What of an answer is compared: the model and the fingerprint that it states, and forms of its content."""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from calls.codec.canonical import digest
from calls.codec.json import InvalidJson, dumps, parse_json
from calls.comparison.answer_fingerprint import answer_meaning
from calls.keys.rules import Plan
from calls.model import Call, Json

DOMAIN: Final = "canary/1"

_DEEPEST: Final = 32


class Observation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer of a model to a pinned call, without its content."""

    exchange: str | None = None
    """The exchange in the store, to look at."""

    model: str | None = None
    fingerprint: str | None = None
    exact: str
    """The digest of what the answer says."""

    structure: str
    """The digest of its structure."""

    embedding: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None
    """Its distance from the reference answers by embeddings; None where none were asked for."""

    judged: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None
    """Its distance by a judge."""


def observe_answer(call: Call, *, exchange: str | None, plan: Plan | None = None) -> Observation:
    """Return what is compared of the answer of a call."""
    return Observation(
        exchange=exchange,
        model=call.model_returned,
        fingerprint=call.system_fingerprint,
        exact=digest(DOMAIN, dumps(answer_meaning(call, plan))),
        structure=digest(DOMAIN, dumps(answer_structure(call))),
    )


def answer_structure(call: Call) -> Json:
    """The tools that an answer requests with the shapes of their arguments, its finish reason, and the shape of its text if that is JSON."""
    tools: list[Json] = [[tool.name, json_shape(tool.arguments)] for tool in call.tool_calls]
    text: Json = None
    if call.text:
        try:
            text = json_shape(parse_json(_without_fence(call.text).encode()))
        except (InvalidJson, UnicodeEncodeError):
            text = "text"
    return {"tools": tools, "finish": call.finish_reason, "text": text}


def json_shape(value: Json, depth: int = 0) -> Json:
    """The types in a JSON value: of an object those of its members, of a list those of its items, each once."""
    match value:
        case Mapping() if depth < _DEEPEST:
            return {name: json_shape(member, depth + 1) for name, member in value.items()}
        case list() | tuple() if depth < _DEEPEST:
            shapes = {dumps(shape): shape for shape in (json_shape(item, depth + 1) for item in value)}
            return [shapes[key] for key in sorted(shapes)]
        case None | bool():
            return "null" if value is None else "boolean"
        case str():
            return "string"
        case Mapping() | list() | tuple():
            return "deep"
        case _:
            return "number"


def _without_fence(text: str) -> str:
    """The text within the fence of Markdown that many models put around JSON."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```"):
        return stripped[3:-3].partition("\n")[2]
    return stripped
