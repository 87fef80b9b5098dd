"""Find out whether a report or a file of a replay is about a run or an exchange, or quotes a text.

An id counts only as a whole: erasing the run `1` must not delete the report of the replay `replay-1`, nor that of another project's run `1`.
"""

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from calls.project_runs import full_run_name, split_run_name

_to_msgpack: Final = msgspec.msgpack.Encoder().encode


def is_about(content: bytes, names: Collection[str]) -> bool:
    """Whether a document, or a file with a recording, has one of these names as the whole of a value."""
    if not any(name.encode() in content for name in names):
        return False
    try:
        document = msgspec.json.decode(content)
    except msgspec.DecodeError:
        # Lines of JSON, or rows in MessagePack.
        return any(b'"%s"' % name.encode() in content or _to_msgpack(name) in content for name in names)
    return any(text in names for text in _texts(document))


def is_quoting(content: bytes, text: str) -> bool:
    """Whether a text of a document, or any byte of another file, has this in it."""
    try:
        document = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return text.encode() in content
    return any(text in one for one in _texts(document))


def is_file_of(content: bytes, project: str) -> bool:
    """Whether a file of the data directory belongs to a project, as far as it says."""
    return _project_of(content) in {project, None}


def is_file_about(content: bytes, project: str, names: Collection[str]) -> bool:
    """Whether a file of the data directory, where projects meet, has one of these names of a project as the whole of a value."""
    return is_file_of(content, project) and is_about(
        content, {*names, *(full_run_name(project, name) for name in names)}
    )


def _project_of(content: bytes) -> str | None:
    """Return the project of a document; None for what is none: a file with a recording does not say it."""
    try:
        place = msgspec.json.decode(content, type=_Place)
    except msgspec.DecodeError:
        return None
    return place.project or split_run_name(place.id)[0]


class _Place(msgspec.Struct):
    """The members of a report or an auto session that say whose it is."""

    id: str
    project: str | None = None


def _texts(document: object) -> Iterator[str]:
    """Return the texts of a document, without the names of members."""
    values = [document]
    while values:
        match values.pop():
            case str() as text:
                yield text
            case dict() as members:
                values += members.values()
            case list() as items:
                values += items
