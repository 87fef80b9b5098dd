"""Replace the ids that the client made when it was recorded by the ids that it makes now."""

from collections.abc import Mapping

from calls.codec.json import InvalidJson, dumps, parse_json
from calls.model import Json


def rewrite_ids(data: bytes, names: Mapping[str, str]) -> bytes:
    """Replace the client's ids in a message of the server; return it unchanged if it has none.

    Only members that are named like ids are replaced: the same text elsewhere is content.
    """
    if not any(f'"{name}"'.encode() in data for name in names):
        return data
    try:
        message = parse_json(data)
    except InvalidJson:
        return data
    changed = _rewrite_value(message, names)
    return data if changed == message else dumps(changed)


def _rewrite_value(value: Json, names: Mapping[str, str]) -> Json:
    match value:
        case dict():
            return {
                name: names.get(item, item)
                if isinstance(item, str) and is_id_name(name)
                else _rewrite_value(item, names)
                for name, item in value.items()
            }
        case list():
            return [_rewrite_value(item, names) for item in value]
        case _:
            return value


def remove_ids(value: Json) -> Json:
    """Remove ids and times, which differ between sessions."""
    match value:
        case dict():
            return {
                name: remove_ids(item)
                for name, item in value.items()
                if not is_id_name(name) and not name.endswith("_at")
            }
        case list():
            return [remove_ids(item) for item in value]
        case _:
            return value


def is_id_name(name: str) -> bool:
    """Return whether a member is named like an id."""
    return name == "id" or name.endswith(("_id", "Id"))
