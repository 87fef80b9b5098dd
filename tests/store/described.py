"""Check answers of the API against the OpenAPI document."""

import json
import re
from collections.abc import Mapping
from typing import Any

import httpx2
from jsonschema import Draft202012Validator, FormatChecker

JSON_TYPES = ("application/json", "application/problem+json")


class UndescribedAnswer(AssertionError):
    """The document does not describe an answer."""


class Description:
    """The document, and which of its answers were seen."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.seen: set[tuple[str, int]] = set()
        self._strict = _close_schema(document["components"]["schemas"])
        self._paths = {
            path: re.compile("^" + re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)) + "$") for path in document["paths"]
        }

    @property
    def operations(self) -> dict[str, Mapping[str, Any]]:
        """Every operation by method and path."""
        return {
            f"{method.upper()} {path}": operation
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
        }

    def operation_of(self, method: str, path: str) -> str:
        """The operation that a request asks for."""
        # A path without parameters is looked at first: /v1/runs/{run} also fits others.
        for template in sorted(self._paths, key=lambda one: one.count("{")):
            if self._paths[template].match(path) and f"{method} {template}" in self.operations:
                return f"{method} {template}"
        raise UndescribedAnswer(f"{method} {path} is in no document")

    def check(self, answer: httpx2.Response) -> None:
        """The answer is one that the document describes, down to its members."""
        name = self.operation_of(answer.request.method, answer.request.url.path)
        described = self.operations[name]["responses"].get(str(answer.status_code))
        if described is None:
            raise UndescribedAnswer(
                f"{name} answered {answer.status_code}, which is not described: {answer.text[:500]}"
            )
        self.seen.add((name, answer.status_code))
        content = described.get("content", {})
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        if not content and answer.num_bytes_downloaded == 0:
            return
        if media_type not in content:
            raise UndescribedAnswer(
                f"{name} answered {answer.status_code} with {media_type!r}, described are {list(content)}"
            )
        if media_type in JSON_TYPES:
            self.validate(content[media_type]["schema"], json.loads(answer.content), name)
        for header, what in described.get("headers", {}).items():
            assert header in answer.headers or not what.get("required"), (name, header)

    def check_lines(self, answer: httpx2.Response) -> None:
        """Each line of the answer is as the document describes it."""
        name = self.operation_of(answer.request.method, answer.request.url.path)
        contents = self.operations[name]["responses"][str(answer.status_code)]["content"]
        content = contents[answer.headers["content-type"].partition(";")[0]]
        for line in answer.content.splitlines():
            self.validate(content["x-lines"], json.loads(line), name)

    def validate(self, schema: Mapping[str, Any], value: Any, about: str) -> None:
        """The value has the members of the schema and no others."""
        whole = dict(_close_schema(schema)) | {"components": {"schemas": self._strict}}
        fault = next(Draft202012Validator(whole, format_checker=FormatChecker()).iter_errors(value), None)
        if fault is not None:
            raise UndescribedAnswer(
                f"{about}: {fault.message[:500]} at /{'/'.join(map(str, fault.absolute_path))}: declare it in store/api/openapi"
            )


def _close_schema(schema: Any) -> Any:
    """Forbid members that the schema does not name, except where it says that there are more."""
    if isinstance(schema, Mapping):
        closed = {name: _close_schema(each) for name, each in schema.items()}
        is_named = schema.get("type") == "object" and "properties" in schema
        return {"additionalProperties": False} | closed if is_named else closed
    return [_close_schema(each) for each in schema] if isinstance(schema, list) else schema
