"""Put the OpenAPI document together: parameters and bodies from the routes, answers from the tables."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from fastapi import FastAPI
from pydantic import TypeAdapter

from store.api.openapi.answers import BYTES, JSON, NDJSON, ROUTES, Answers, route_problems
from store.api.openapi.example import make_example
from store.api.openapi.problems import WITH_BODY, ProblemSchema, problem_responses

SUFFIX: Final = "Schema"
"""The end of the classes' names, which keeps them apart from the product's own; the document's names do not have it."""

_FRAMEWORK: Final = ("HTTPValidationError", "ValidationError")
"""Answers that FastAPI describes and we replace."""

_BUNDLE: Final = {
    "required": True,
    "description": "a bundle (docs/trace-format.md)",
    "content": {
        name: {"schema": {"type": "string", "format": "binary"}}
        for name in ("application/octet-stream", "application/jsonl")
    },
}
"""The body of an import, which the route reads itself, in pieces."""

_SHOT: Final[dict[str, Any]] = {
    "required": True,
    "content": {"application/json": {"schema": {"type": "object"}}},
    "description": "what `playhead canary` has found: `rules`, `run`, `answers`, `failed`, `problem`, `traffic`",
}
"""The body of a shot, of which only `playhead canary` knows the digests."""


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the document of an app. Of a route without declared answers it has the problems that every route has."""
    document = app.openapi()
    components = document.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    for name in _FRAMEWORK:
        schemas.pop(name, None)
    schemas |= answer_components()
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "description": "an API token"}}
    for name, operation in _operations(document):
        answers = ROUTES.get(name, Answers())
        problems = route_problems(answers)
        operation["security"] = [] if answers.is_public else [{"token": []}]
        if name == "POST /v1/import":
            operation["requestBody"] = _BUNDLE
            problems = (*problems, *WITH_BODY)
        elif name == "POST /v1/canaries/{canary}/shots":
            operation["requestBody"] = _SHOT
            problems = (*problems, *WITH_BODY, "bad_request")
        elif "requestBody" in operation:
            problems = (*problems, *WITH_BODY, "bad_request")
        operation["responses"] = _merge(problem_responses(problems), _successes(answers, schemas))
    return document


@cache
def answer_components() -> dict[str, Any]:
    """Return the schemas of all answers by name."""
    kinds: list[type] = [ProblemSchema]
    for answers in ROUTES.values():
        kinds += [kind for kind in (answers.schema, answers.line_schema) if isinstance(kind, type)]
    inputs: list[tuple[str, Any, TypeAdapter[Any]]] = [
        (kind.__name__, "serialization", TypeAdapter(kind)) for kind in dict.fromkeys(kinds)
    ]
    _, found = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    return {name.removesuffix(SUFFIX): _rename(schema) for name, schema in found["$defs"].items()}


def _rename(value: Any) -> Any:
    """Remove the suffix from references and titles."""
    if isinstance(value, Mapping):
        return {
            name: each.removesuffix(SUFFIX) if name in ("$ref", "title") and isinstance(each, str) else _rename(each)
            for name, each in value.items()
        }
    return [_rename(each) for each in value] if isinstance(value, list) else value


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def _successes(answers: Answers, schemas: Mapping[str, Any]) -> dict[str, Any]:
    return {str(status): _success(answers, schemas) for status in answers.statuses}


def _success(answers: Answers, schemas: Mapping[str, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": answers.description}
    if answers.headers:
        response["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in answers.headers.items()
        }
    if answers.schema is not None:
        content: dict[str, Any] = {}
        for media_type in answers.media_types:
            schema = _schema_reference(answers.schema)
            content[media_type] = {"schema": schema}
            if media_type == JSON:
                content[media_type]["example"] = make_example(schema, schemas)
        if answers.line_schema is not None:
            lines = (
                content.setdefault(NDJSON, {"schema": BYTES}) if JSON in content else content[answers.media_types[0]]
            )
            lines["x-lines"] = _schema_reference(answers.line_schema)
        response["content"] = content
    return response


def _schema_reference(kind: Any) -> dict[str, Any]:
    if isinstance(kind, type):
        return {"$ref": f"#/components/schemas/{kind.__name__.removesuffix(SUFFIX)}"}
    return dict(kind)


def _merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two sets of responses; a status that both have gets the content types of both."""
    merged = dict(one)
    for status, response in other.items():
        if status in merged:
            both = merged[status]
            merged[status] = both | response | {"content": both["content"] | response["content"]}
        else:
            merged[status] = response
    return dict(sorted(merged.items()))
