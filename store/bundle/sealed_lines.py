"""The lines of a bundle: each ends with a digest of itself, and shows what a reviewer would not see."""

import json
import re

from store.bundle.trace import digest

CONFLICT = (b"<<<<<<< ", b"||||||| ", b"=======", b">>>>>>> ")
"""The beginnings of the lines that Git inserts at a merge conflict."""

CONFLICTED = "a Git conflict marker, because a merge of the file is not finished (check out one side of it)"

_SEAL = b',"check":"'
_SEAL_SIZE = len(_SEAL) + len('sha256:"}\n') + 64

# Characters that are escaped so that a reviewer sees them: line separators, bidirectional overrides, C1 controls, and tags,
# which can carry instructions to a model that a person does not see. They occur only in strings, so no value changes.
_INVISIBLE = re.compile(
    rb"\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf|\xc2[\x80-\x9f]|\x7f|\xd8\x9c|\xf3\xa0[\x80-\x87][\x80-\xbf]"
)


def show_invisible(line: bytes) -> bytes:
    """Escape the characters of a line of JSON that nobody would see."""
    if line.isascii() and b"\x7f" not in line:
        return line  # large bodies are mostly base64, and searching them takes seconds
    return _INVISIBLE.sub(lambda match: json.dumps(match[0].decode())[1:-1].encode(), line)


def seal_line(line: bytes) -> bytes:
    """Add to a JSON object, as its last member, the digest of everything before it."""
    with memoryview(line) as view, view[:-1] as content:
        return b"".join((content, _seal_of(content)))


def _seal_of(content: memoryview) -> bytes:
    return _SEAL + digest(content).encode() + b'"}\n'


def seal_fault(line: bytes) -> str | None:
    """Return what is wrong with a line, by its own digest; None if nothing is."""
    if line.startswith(CONFLICT):
        return f"it is {CONFLICTED}"
    if line.endswith(b"\r\n"):
        return "it ends with CR LF, so an editor or Git has rewritten the file (mark it `-text` in .gitattributes)"
    if len(line) < _SEAL_SIZE or not line.startswith(b"{") or not line.endswith(b'"}\n'):
        return "the line is incomplete"
    with memoryview(line) as view, view[:-_SEAL_SIZE] as content:
        is_sealed = _seal_of(content) == view[-_SEAL_SIZE:]
    return None if is_sealed else "its bytes do not match its own digest"
