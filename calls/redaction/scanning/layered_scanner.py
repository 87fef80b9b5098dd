"""Search a stream through escapes and base64, and replace secrets in place.

Each of three layers processes what the previous one has decided: unnecessary escapes (`sk\u002dproj`, `sk%2Dproj`) are
decoded, base64 is decoded and searched in the same way, to a limited depth, and the rest is searched for credentials.
Lengths never change.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from calls.placeholder import stretch_placeholder
from calls.redaction.rules.expression import compile_expression, search_expression
from calls.redaction.scanning.base64_scanner import Base64Scanner
from calls.redaction.scanning.encoded_text import ESCAPE
from calls.redaction.scanning.scanner import CHANGEABLE, CONTEXT, MAX_BLOCK, Edit, RuleTable, Scanner

MAX_DEPTH: Final = 3
"""The depth to which base64 inside base64 is searched."""

_MAX_FEED: Final = 64 << 10
"""The number of bytes that are searched at once: each secret may copy them."""

_escape_beginning = re.compile(rb"(?:\\{1,8}(?:u(?:0(?:0[2-7]?)?)?)?|%(?:25){0,2}[2-7]?)\Z").search
_LONGEST_ESCAPE = 13
_PERCENT: Final = 0x25
_escape = compile_expression(ESCAPE)


class LayeredScanner:
    """Searches one stream through all layers, with the interface of `Scanner`."""

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
        table: RuleTable,
        key: bytes,
        *,
        before: bytes = b"\n",
        is_json: bool = False,
        is_spelled: bool = False,
        is_binary: bool = False,
        depth: int = MAX_DEPTH,
    ) -> None:
        """`is_spelled`: a model outputs the stream word by word, and as little of it as possible may be held back.

        `is_binary`: the stream consists of binary messages in base64.
        """
        self._table = table
        self._is_binary = is_binary
        self._is_spelled = is_spelled
        self._tokens = Scanner(table, key, before=before, is_json=is_json)
        self._base64 = (
            Base64Scanner(_inner_scanners(table, key, depth - 1), is_spelled=is_spelled, is_binary=is_binary)
            if depth
            else None
        )
        self._held = b""
        """The end of a model's output that may begin a run of base64."""
        self._rest = b""
        self._view = b""
        """The unescaped text that the base64 layer has not decided."""
        self._taken = 0
        """The number of unescaped bytes that the base64 layer has passed on."""
        self._places: list[int] = []
        """The offsets of undecided escapes in the unescaped text."""
        self._written: list[bytes] = []
        """The bytes of each of these escapes."""
        self._shifts: list[int] = [0]
        """How much longer the text is than the unescaped text: before the first of these escapes, and after each."""
        self.decided_to = 0

    def try_pass(self, data: bytes, *, last: bool = False) -> bool:
        """Accept the next piece if it is certain that nothing in it changes, as with nearly all of a stream of events."""
        if self._is_binary or not self._is_idle:
            return False
        text = self._tokens.with_context(data)
        if not (self._table.is_clean(text) if last else self._table.can_pass(text)):
            return False
        self._tokens.skip(data)
        if self._base64:
            self._base64.skip(data)
        self._taken += len(data)
        self.decided_to += len(data)
        return True

    def try_pass_on(self, data: bytes) -> bool:
        """Accept the next piece if no byte of it or of the held text will change, even if it ends within a name."""
        base64 = self._base64
        if self._rest or self._view or base64 is None or not base64.is_idle:
            return False
        text = self._held + data if self._held else data
        name = self._tokens.try_pass_on(text)
        if name == CHANGEABLE:
            return False
        if name == CONTEXT:
            self._held = text
            return True
        self._held = b""
        base64.skip(text)
        self._taken += len(text)
        if self._places:
            self._decide()
        else:
            self.decided_to = self._tokens.decided_to + self._shifts[0]
        return True

    @property
    def unchanged_to(self) -> int:
        """The offset before which no byte will change: after `decided_to` if the held text is a name and no secret yet."""
        return self._text_offset(self._tokens.unchanged_to)

    @property
    def is_json(self) -> bool:
        """Whether the stream consists of JSON texts."""
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
        if self._base64:
            self._base64.is_stream = is_stream

    @property
    def _is_idle(self) -> bool:
        return (
            not (self._held or self._rest or self._view)
            and (not self._base64 or self._base64.is_idle)
            and self._tokens.is_idle
        )

    def feed(self, data: bytes, *, last: bool = False) -> Sequence[Edit]:
        """Feed the next piece; return the edits in order. `last`: decide everything."""
        if not self._is_spelled:
            if self.try_pass(data, last=last):
                return ()
        elif not last and self._try_hold(data):
            return ()
        else:
            data, self._held = self._held + data, b""
        edits: list[Edit] = []
        while len(data) > _MAX_FEED:
            edits += self._search(data[:_MAX_FEED], last=False)
            data = data[_MAX_FEED:]
        edits += self._search(data, last=last)
        return edits

    def _search(self, data: bytes, *, last: bool) -> list[Edit]:
        view = self._unescape(self._rest + data, last=last)
        self._view += view
        found = self._base64.feed(view, last=last) if self._base64 else []
        edits = [self._encode_escaped(edit) for edit in found]
        size = self._base64.decided_to - self._taken if self._base64 else len(self._view)
        piece, self._view = _apply_edits(self._view[:size], self._taken, found), self._view[size:]
        self._taken += size
        edits += [self._replace_escaped(edit) for edit in self._tokens.feed(piece, last=last)]
        self._decide()
        return edits

    def _try_hold(self, data: bytes) -> bool:
        """Hold back a piece of a model's output whose end may begin encoded text. Mostly it turns out to be a plain word."""
        if self._rest or self._view or self._base64 is None or not self._base64.is_idle:
            return False
        if not self._tokens.may_begin_encoded_at_end(self._held + data):
            return False
        self._held += data
        return True

    def _unescape(self, text: bytes, *, last: bool) -> bytes:
        """Decode the escapes in a text, up to where an incomplete escape may begin."""
        beginning = None if last else _escape_beginning(text, max(0, len(text) - _LONGEST_ESCAPE))
        end = beginning.start() if beginning else len(text)
        self._rest = text[end:]
        # Not `bytes in bytes`, for which CPython raises and discards an error (up to 3 µs).
        if text.find(b"\\u00") < 0 and _PERCENT not in text:
            return text[:end]
        out: list[bytes] = []
        at, place = 0, self._taken + len(self._view)
        while (found := search_expression(_escape, text, at))[0] >= 0 and found[0] < end:
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
        self.decided_to = self._text_offset(self._tokens.decided_to)

    def _text_offset(self, place: int) -> int:
        """Return the offset in the text of an offset in the unescaped text."""
        return place + self._shifts[bisect_left(self._places, place)]

    def _replace_escaped(self, edit: Edit) -> Edit:
        """Stretch a placeholder to the escaped length of the secret."""
        low, high = self._text_offset(edit.at), self._text_offset(edit.at + len(edit.data))
        return Edit(
            low, edit.data if high - low == len(edit.data) else stretch_placeholder(edit.data, high - low, MAX_BLOCK)
        )

    def _encode_escaped(self, edit: Edit) -> Edit:
        """Write each character of an edit in base64 in the same escape form as the one that it replaces."""
        low = bisect_left(self._places, edit.at)
        high = bisect_left(self._places, edit.at + len(edit.data))
        chars = [bytes([char]) for char in edit.data]
        for place, written in zip(self._places[low:high], self._written[low:high], strict=True):
            chars[place - edit.at] = written[:-2] + b"%02x" % edit.data[place - edit.at]
        return Edit(self._text_offset(edit.at), b"".join(chars))


# One for all streams. A function of each scanner's own would keep it, with all that an exchange holds, until the next
# collection of garbage.
@lru_cache(16)
def _inner_scanners(table: RuleTable, key: bytes, depth: int) -> Callable[[bool], LayeredScanner]:
    """Return what creates the scanners for text in base64."""

    def create_scanner(is_stream: bool) -> LayeredScanner:
        scanner = LayeredScanner(table, key, depth=depth)
        scanner.is_stream = is_stream
        return scanner

    return create_scanner


def _apply_edits(data: bytes, start: int, edits: Sequence[Edit]) -> bytes:
    if not edits:
        return data
    out = bytearray(data)
    for at, new in edits:
        out[at - start : at - start + len(new)] = new
    return bytes(out)
