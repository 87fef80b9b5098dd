"""Replace ids that the client made when it was recorded by those that it makes now."""

from collections.abc import Mapping

from calls.codec.json import NotLossless, dumps, parse
from calls.model import Json


def renamed(data: bytes, names: Mapping[str, str]) -> bytes:
    """A message of the server with other ids where it speaks of the client's: as it came where it speaks of none.

    Only members that hold ids are looked at: the same text elsewhere is what somebody said.
    """
    if not any(f'"{name}"'.encode() in data for name in names):
        return data
    try:
        message = parse(data)
    except NotLossless:
        return data
    changed = _renamed(message, names)
    return data if changed == message else dumps(changed)


def _renamed(value: Json, names: Mapping[str, str]) -> Json:
    match value:
        case dict():
            return {
                name: names.get(item, item) if isinstance(item, str) and _is_id(name) else _renamed(item, names)
                for name, item in value.items()
            }
        case list():
            return [_renamed(item, names) for item in value]
        case _:
            return value


def unnamed(value: Json) -> Json:
    """A message without ids, and without times, which differ as they do."""
    match value:
        case dict():
            return {
                name: unnamed(item) for name, item in value.items() if not _is_id(name) and not name.endswith("_at")
            }
        case list():
            return [unnamed(item) for item in value]
        case _:
            return value


def _is_id(name: str) -> bool:
    return name == "id" or name.endswith(("_id", "Id"))
