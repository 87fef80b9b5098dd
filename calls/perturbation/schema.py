"""The shape that a JSON Schema declares: types, members, items, bounds and enumerations. Other keywords do not narrow it."""

from collections.abc import Mapping
from typing import Any, Final, cast

from calls.codec.canonical import canonical_parsed_json
from calls.codec.json import JsonType
from calls.model import Json
from calls.perturbation.shape import AnswerShape, merge_shapes

TYPES: Final[tuple[JsonType, ...]] = ("null", "boolean", "integer", "number", "string", "array", "object")
MAX_DEPTH: Final = 50


class BadSchema(ValueError):
    """A schema cannot be used; the message says why."""


def shape_from_schema(schema: Any, root: Any = None, depth: int = 0) -> AnswerShape:
    """Return the shape that a schema declares. Raises BadSchema."""
    if schema is True or schema == {}:
        return AnswerShape(types=frozenset(TYPES), is_closed=False)
    if not isinstance(schema, Mapping):
        raise BadSchema(f"a schema is an object, not {type(schema).__name__}")
    if depth > MAX_DEPTH:
        raise BadSchema(f"its $ref or nesting is deeper than {MAX_DEPTH}")
    root = schema if root is None else root
    if "$ref" in schema:
        return shape_from_schema(_follow_reference(str(schema["$ref"]), root), root, depth + 1)
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        shapes = [shape_from_schema(one, root, depth + 1) for one in alternatives]
        merged = shapes[0]
        for shape in shapes[1:]:
            merged = merge_shapes(merged, shape)
        return merged
    return _declared_shape(schema, root, depth)


def _declared_shape(schema: Mapping[str, Any], root: Any, depth: int) -> AnswerShape:
    members = {
        str(name): shape_from_schema(one, root, depth + 1) for name, one in (schema.get("properties") or {}).items()
    }
    items = schema.get("items", True) if isinstance(schema.get("items", True), Mapping | bool) else True
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return AnswerShape(
        types=_types(schema),
        members=members,
        required=frozenset(map(str, schema.get("required") or ())) & members.keys(),
        items=shape_from_schema(items, root, depth + 1)
        if "items" in schema
        else AnswerShape(types=frozenset(TYPES), is_closed=False),
        examples=tuple(one for one in choices or () if isinstance(one, str)),
        is_closed=schema.get("additionalProperties", True) is False,
        choices=None if choices is None else frozenset(canonical_parsed_json(cast("Json", one)) for one in choices),
        minimum=schema.get("minimum", schema.get("exclusiveMinimum")),
        maximum=schema.get("maximum", schema.get("exclusiveMaximum")),
        min_items=int(schema.get("minItems", 0)),
        max_items=schema.get("maxItems"),
        min_length=int(schema.get("minLength", 0)),
        max_length=schema.get("maxLength"),
    )


def _types(schema: Mapping[str, Any]) -> frozenset[JsonType]:
    type_field = schema.get("type")
    if type_field is None:
        return frozenset(TYPES) if "properties" not in schema else frozenset(("object",))
    names = [type_field] if isinstance(type_field, str) else list(type_field)
    if unknown := [name for name in names if name not in TYPES]:
        raise BadSchema(f"unknown type {unknown[0]!r}: use {', '.join(TYPES)}")
    return frozenset(one for one in TYPES if one in names)


def _follow_reference(reference: str, root: Any) -> Any:
    if not reference.startswith("#"):
        raise BadSchema(f"$ref {reference!r} is in another document: put it into $defs of this one")
    found = root
    for part in reference[1:].strip("/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not part:
            continue
        if not isinstance(found, Mapping) or name not in found:
            raise BadSchema(f"$ref {reference!r} leads nowhere")
        found = found[name]
    return found
