"""Put an example of a schema together from the examples of its members."""

from collections.abc import Mapping
from typing import Any, Final

_SIMPLE: Final[Mapping[str, Any]] = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "null": None}


def make_example(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Any:
    """Return a value that the schema describes, as far as its members have examples."""
    if "$ref" in schema:
        return make_example(components[schema["$ref"].rpartition("/")[2]], components)
    for name in ("examples", "enum"):
        if name in schema:
            return schema[name][0]
    if "const" in schema:
        return schema["const"]
    if choices := schema.get("anyOf"):
        return make_example(choices[0], components)
    match schema.get("type"):
        case "object":
            return {name: make_example(member, components) for name, member in schema.get("properties", {}).items()}
        case "array":
            return [make_example(schema["items"], components)] if schema.get("items") else []
        case kind:
            return _SIMPLE.get(str(kind))
