"""Search a stream through escapes and base64, and replace what is found where it stands.

Three layers, each of which takes what the one before has decided: escapes that nobody needs (`sk\u002dproj`, `sk%2Dproj`)
are read as what they mean, base64 is decoded and searched in the same way, down to a bounded depth, and the rest is
searched for credentials. Lengths never change.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from calls.placeholder import stretch_placeholder
from calls.redaction.rules.expression import compile_expression, search
from calls.redaction.scanning.base64_scanner import Base64Scanner
from calls.redaction.scanning.encoded_text import ESCAPE
from calls.redaction.scanning.scanner import CHANGEABLE, CONTEXT, LONGEST, Edit, Scanner, Table

DEPTH: Final = 3
"""How often base64 is looked for inside of base64."""

_escape_beginning = re.compile(rb"(?:\\{1,8}(?:u(?:0(?:0[2-7]?)?)?)?|%[2-7]?)\Z").search
_LONGEST_ESCAPE = 13
_escape = compile_expression(ESCAPE)


class LayeredScanner:
    """One stream, searched through all layers. It is used as a `Scanner` is."""

    __slots__ = (
        "_base64",
        "_held",
        "_is_binary",
        "_is_spelled",
        "_places",
        "_rest",
        "_shifts",
        "_table",
        "_taken",
        "_tokens",
        "_view",
        "_written",
        "decided_to",
    )

    def __init__(
        self,
        table: Table,
        key: bytes,
        *,
        before: bytes = b"\n",
        is_json: bool = False,
        is_spelled: bool = False,
        is_binary: bool = False,
        depth: int = DEPTH,
    ) -> None:
        """`is_spelled`: the stream is a text that a model spells out, word by word, of which as little as can be may wait.

        `is_binary`: the stream is binary messages in base64.
        """
        self._table = table
        self._is_binary = is_binary
        self._is_spelled = is_spelled
        self._tokens = Scanner(table, key, before=before, is_json=is_json)
        self._base64 = (
            Base64Scanner(lambda: self._inner_scanner(key, depth - 1), is_spelled=is_spelled, is_binary=is_binary)
            if depth
            else None
        )
        self._held = b""
        """The end of a spelled text that may begin a run of base64."""
        self._rest = b""
        self._view = b""
        """What was read and waits for the layer of base64."""
        self._taken = 0
        """How much that layer has given on."""
        self._places: list[int] = []
        """Where in the text as it reads an escape was that is not decided yet."""
        self._written: list[bytes] = []
        """How each of them is written."""
        self._shifts: list[int] = [0]
        """How much longer the text is than it reads: before the first of them, and behind each."""
        self.decided_to = 0

    def passes(self, data: bytes, *, last: bool = False) -> bool:
        """Take the next piece if it is decided at once that nothing of it changes, as with nearly all of a stream of events."""
        if self._is_binary or not self._is_idle:
            return False
        text = self._tokens.with_context(data)
        if not (self._table.is_clean(text) if last else self._table.passes(text)):
            return False
        self._tokens.skip(data)
        if self._base64:
            self._base64.skip(data)
        self._taken += len(data)
        self.decided_to += len(data)
        return True

    def passes_on(self, data: bytes) -> bool:
        """Take the next piece if no byte of it, nor of what waits, will change, though it may end within a name."""
        base64 = self._base64
        if self._rest or self._view or base64 is None or not base64.is_idle:
            return False
        text = self._held + data if self._held else data
        name = self._tokens.name_in(text)
        if name == CHANGEABLE:
            return False
        if name == CONTEXT:
            self._held = text
            return True
        self._tokens.pass_on(text, name)
        self._held = b""
        base64.skip(text)
        self._taken += len(text)
        if self._places:
            self._decide()
        else:
            self.decided_to = self._tokens.decided_to + self._shifts[0]
        return True

    @property
    def unchanged(self) -> int:
        """Up to which offset no byte will change: further than `decided_to` where what waits is a name, and no secret yet."""
        return self._offset(self._tokens.unchanged)

    @property
    def is_json(self) -> bool:
        """Whether the stream is of JSON texts."""
        return self._tokens.is_json

    @is_json.setter
    def is_json(self, is_json: bool) -> None:
        self._tokens.is_json = is_json

    @property
    def is_stream(self) -> bool:
        """Whether the strings of the JSON texts may be pieces of a longer text."""
        return self._tokens.is_stream

    @is_stream.setter
    def is_stream(self, is_stream: bool) -> None:
        self._tokens.is_stream = is_stream

    def _inner_scanner(self, key: bytes, depth: int) -> "LayeredScanner":
        """What looks into base64."""
        scanner = LayeredScanner(self._table, key, depth=depth)
        scanner.is_stream = self.is_stream
        return scanner

    @property
    def _is_idle(self) -> bool:
        return (
            not (self._held or self._rest or self._view)
            and (not self._base64 or self._base64.is_idle)
            and self._tokens.is_idle
        )

    def feed(self, data: bytes, *, last: bool = False) -> Sequence[Edit]:
        """Take the next piece and tell what is to be replaced, in order; with `last` nothing stays undecided."""
        if not self._is_spelled:
            if self.passes(data, last=last):
                return ()
        elif not last and self._holds(data):
            return ()
        else:
            data, self._held = self._held + data, b""
        view = self._read(self._rest + data, last=last)
        self._view += view
        found = self._base64.feed(view, last=last) if self._base64 else []
        edits = [self._encode_escaped(edit) for edit in found]
        size = self._base64.decided_to - self._taken if self._base64 else len(self._view)
        piece, self._view = _apply_edits(self._view[:size], self._taken, found), self._view[size:]
        self._taken += size
        edits += [self._replace_escaped(edit) for edit in self._tokens.feed(piece, last=last)]
        self._decide()
        return edits

    def _holds(self, data: bytes) -> bool:
        """Take a piece of a spelled text of which only the end may be, or begin, something to decode: most turn out to be words."""
        if self._rest or self._view or self._base64 is None or not self._base64.is_idle:
            return False
        if not self._tokens.may_begin_encoded(self._held + data):
            return False
        self._held += data
        return True

    def _read(self, text: bytes, *, last: bool) -> bytes:
        """The text as it reads, up to where an escape may have begun."""
        beginning = None if last else _escape_beginning(text, max(0, len(text) - _LONGEST_ESCAPE))
        end = beginning.start() if beginning else len(text)
        self._rest = text[end:]
        if b"\\u00" not in text and b"%" not in text:
            return text[:end]
        out: list[bytes] = []
        at, place = 0, self._taken + len(self._view)
        while (found := search(_escape, text, at))[0] >= 0 and found[0] < end:
            start, stop = found
            out += [text[at:start], bytes([int(text[stop - 2 : stop], 16)])]
            place += start - at + 1
            at = stop
            self._places.append(place - 1)
            self._written.append(text[start:stop])
            self._shifts.append(self._shifts[-1] + stop - start - 1)
        return b"".join([*out, text[at:end]])

    def _decide(self) -> None:
        done = bisect_left(self._places, self._tokens.decided_to)
        del self._places[:done], self._written[:done], self._shifts[:done]
        self.decided_to = self._offset(self._tokens.decided_to)

    def _offset(self, place: int) -> int:
        """Where in the text something stands that is read at a place."""
        return place + self._shifts[bisect_left(self._places, place)]

    def _replace_escaped(self, edit: Edit) -> Edit:
        """A placeholder, as long as what it replaces is written."""
        low, high = self._offset(edit.at), self._offset(edit.at + len(edit.data))
        return Edit(
            low, edit.data if high - low == len(edit.data) else stretch_placeholder(edit.data, high - low, LONGEST)
        )

    def _encode_escaped(self, edit: Edit) -> Edit:
        """Base64, each character written as the one that stood there was."""
        low = bisect_left(self._places, edit.at)
        high = bisect_left(self._places, edit.at + len(edit.data))
        chars = [bytes([char]) for char in edit.data]
        for place, written in zip(self._places[low:high], self._written[low:high], strict=True):
            chars[place - edit.at] = written[:-2] + b"%02x" % edit.data[place - edit.at]
        return Edit(self._offset(edit.at), b"".join(chars))


def _apply_edits(data: bytes, start: int, edits: Sequence[Edit]) -> bytes:
    if not edits:
        return data
    out = bytearray(data)
    for at, new in edits:
        out[at - start : at - start + len(new)] = new
    return bytes(out)
