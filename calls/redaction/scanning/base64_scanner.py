"""Find secrets in base64: decode it, search the text, and encode the replacement in its place.

A run of base64 is searched if it decodes to text: to ASCII from its first characters on, or, if it is long, to UTF-8. It may
contain line breaks, also escaped ones of JSON; both alphabets are accepted, with or without padding. A replacement has the
length of the secret, so the run stays base64 of the same length and decodes to the redacted text.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from calls.placeholder import PREFIX
from calls.redaction.rules.expression import compile_expression, match_prefix, search_expression
from calls.redaction.scanning.encoded_text import (
    CHARS,
    GROUP,
    LONG,
    RUNS,
    START,
    TEXT,
    TEXT_GROUP_BEGINNING,
    TEXT_RUN,
    TEXT_RUN_BEGINNING,
)
from calls.redaction.scanning.scanner import Edit

_LINE = 40
"""A run of base64 does not continue after a shorter line."""

_STANDARD = bytes.maketrans(b"-_", b"+/")
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


_TAILS = rf"{START}[{CHARS}]{{1,{LONG - 1}}}|\\(?:[bfnrt]|u[0-9A-Fa-f]{{0,4}})?|%[0-9A-Fa-f]{{0,2}}|\[[0-9;]{{0,12}}m?"
_open = compile_expression(rf"(?:{_TAILS})\z|{RUNS}")
_last = compile_expression(RUNS)
_any_run = rf"{START}[{CHARS}]{{{4 * TEXT}}}"
_open_any = compile_expression(rf"(?:{_TAILS})\z|{_any_run}")
_last_any = compile_expression(_any_run)
_open_text = compile_expression(rf"(?:{TEXT_GROUP_BEGINNING}|{TEXT_RUN_BEGINNING})\z|{TEXT_RUN}")
_begins_with_text = re.compile(f"(?:{GROUP}){{{TEXT}}}".encode()).match
_start = re.compile(START.encode()).match

_ONE = rb"[A-Za-z0-9+/_\-]|\\{1,8}/|%2[BFbf]|\\{1,8}u002[bfBF]"
_piece = compile_expression(rf"[{CHARS}]*(?:(?:%2[BFbf]|\\{{1,8}}/|\\{{1,8}}u002[bfBF])[{CHARS}]*)*")
_break = re.compile(rb"(?:(?:\\+r)?\\+n|\r?\n[ \t]{0,16})(?=[A-Za-z0-9+/_\-]{4})").match
_break_beginning = re.compile(rb"(?:\\+(?:r(?:\\+n?)?|n|u0?0?2?)?|\r?\n?[ \t]{0,16}|%2?)[A-Za-z0-9+/_\-]{0,3}\Z").match
_chars = re.compile(_ONE).finditer
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")
_SEPARATOR = re.compile(rb"(?:\\+r)?\\+n|[\r\n \t]+")
_ESCAPED = re.compile(rb"\\{1,8}/|%2[BFbf]|\\{1,8}u002[bfBF]")

_PICTURES = (b"iVBORw0KGgo", b"/9j/", b"R0lGOD", b"UklGR", b"SUkqA", b"Qk0", b"T2dnUw", b"SUQz", b"AAAA")
"""The beginnings of pictures, audio and video in base64."""


class InnerScanner(Protocol):
    """Searches the decoded text."""

    decided_to: int
    is_json: bool

    def feed(self, data: bytes, *, last: bool = False) -> Sequence[Edit]:
        """Feed the next bytes; return the edits."""


class Base64Scanner:
    """Scans one stream. `feed` returns the edits; before the offset `decided_to`, there will be no more."""

    __slots__ = ("_at", "_before", "_inner", "_is_binary", "_last", "_open", "_rest", "_run", "is_stream")

    def __init__(
        self, inner: Callable[[bool], InnerScanner], *, is_spelled: bool = False, is_binary: bool = False
    ) -> None:
        """`inner` creates what searches the decoded text, given `is_stream`.

        `is_spelled`: a model outputs the stream in words, few of which may be held back: only runs of ASCII are searched.

        `is_binary`: the whole stream is base64, and need not decode to text.
        """
        self._inner = inner
        self.is_stream = False
        """Whether the decoded strings may be pieces of a text that is also searched as a whole."""

        self._is_binary = is_binary
        self._open = _open_any if is_binary else _open_text if is_spelled else _open
        self._last = _last_any if is_binary else _last
        self._rest = b""
        self._before = b"\n"
        self._run: _Run | None = None
        self._at = 0
        """The offset of the rest."""

    @property
    def decided_to(self) -> int:
        """The offset before which nothing will change any more."""
        return self._run.at if self._run else self._at

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held back."""
        return not (self._rest or self._run)

    def skip(self, data: bytes) -> None:
        """Skip a piece that is known to contain no beginning of a run."""
        self._at += len(data)
        self._before = (data if len(data) >= 16 else self._before + data)[-16:]

    def feed(self, data: bytes, *, last: bool = False) -> list[Edit]:
        """Feed the next piece; return the edits in order. `last`: decide everything."""
        text, at = self._before + self._rest + data, len(self._before)
        offset = self._at - at
        edits: list[Edit] = []
        while at < len(text) or (self._run and last):
            if self._run:
                at = self._run.add(text, at, last=last)
                edits += self._run.take_edits()
                if not self._run.has_ended:
                    break
                self._run = None
            else:
                at, begins = self._find_run(text, at, offset, last=last)
                if not begins:
                    break
        self._at = offset + at
        self._rest, self._before = text[at:], text[max(0, at - 16) : at]
        return edits

    def _find_run(self, text: bytes, at: int, offset: int, *, last: bool) -> tuple[int, bool]:
        """Return the start of the next run, or the offset up to which there is none."""
        # The text before a run may already be decided.
        low, high = search_expression(self._last if last else self._open, text, max(0, at - 8))
        while low >= 0:
            found = _start(text, low)
            if found is None or (high == len(text) and not last and not self._is_sure(text, max(at, found.end()))):
                return max(at, low), False
            if found.end() >= at:
                inner = self._inner(self.is_stream) if self._is_binary or _is_text(text, found.end()) else None
                if inner is not None and text.startswith(_OBJECT, found.end()):
                    inner.is_json = True
                self._run = _Run(inner, offset + found.end())
                return found.end(), True
            low, high = search_expression(self._last if last else self._open, text, low + 1)
        return len(text), False

    def _is_sure(self, text: bytes, at: int) -> bool:
        return self._is_binary or _begins_with_text(text, at) is not None or len(text) - at >= LONG


_OBJECT = b"eyJ"
"""The beginning of a JSON object in base64: a brace and a quote."""


def _is_text(text: bytes, at: int) -> bool:
    """Return whether the run that begins here must be searched."""
    if text.startswith(_PICTURES, at) or PREFIX in text[at : at + LONG]:
        return False
    if _begins_with_text(text, at):
        return True
    data = b64decode(text[at : at + LONG].translate(_STANDARD))
    return _CONTROL.search(data) is None and any(_is_utf8(data[: len(data) - cut]) for cut in range(4))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Run:
    """The undecided window of a run of base64."""

    def __init__(self, inner: InnerScanner | None, at: int) -> None:
        self.at = at
        """The offset of the window."""
        self.has_ended = False
        self._inner = inner
        self._raw = b""
        self._decoded = 0
        """The number of decoded bytes before the window."""
        self._fed = 0
        """The number of decoded bytes of the window that were searched."""
        self._found: list[Edit] = []
        self._line = 0

    def add(self, text: bytes, at: int, *, last: bool) -> int:
        """Add the text from an offset on that belongs to the run; return the offset after it."""
        start = at
        while True:
            end = match_prefix(_piece, text, at)
            self._line += len(_strip_separators(text[at:end]))
            at = end
            gap = _break(text, at) if self._line >= _LINE and self._line % 4 == 0 else None
            if gap is None:
                break
            self._line, at = 0, gap.end()
        self._raw += text[start:at]
        self.has_ended = last or (at < len(text) and _break_beginning(text, at) is None)
        return at

    def take_edits(self) -> list[Edit]:
        """Return the edits in the text that is decided, and remove that text from the window."""
        if self._inner is None:
            self.at += len(self._raw)
            self._raw = b""
            return []
        chars = _strip_separators(self._raw)
        whole = len(chars) // 4 * 4
        data = _decode(chars if self.has_ended else chars[:whole])
        self._found += self._inner.feed(data[self._fed :], last=self.has_ended)
        self._fed = len(data)
        groups = whole // 4 if self.has_ended else (self._inner.decided_to - self._decoded) // 3
        size = len(data) if self.has_ended else 3 * groups
        edits = self._encode_edits(chars, data[:size]) if self._found else []
        self._release(len(self._raw) if self.has_ended else _end_of_chars(self._raw, chars, 4 * groups), size)
        return edits

    def _encode_edits(self, chars: bytes, data: bytes) -> list[Edit]:
        """Convert edits of the decoded text to edits of the base64."""
        new = bytearray(data)
        for at, text in self._found:
            low, high = max(at - self._decoded, 0), min(at + len(text) - self._decoded, len(data))
            if low < high:
                start = self._decoded - at
                new[low:high] = text[low + start : high + start]
        self._found = [edit for edit in self._found if edit.at + len(edit.data) > self._decoded + len(data)]
        encoded = _keep_last_bits(b64encode(new).rstrip(b"="), chars)
        if b"-" in chars or b"_" in chars:
            encoded = encoded.translate(_URL_SAFE)
        places = [found.span() for found in _chars(_mask_breaks(self._raw))]
        return [self._edit(places, encoded, low, high) for low, high in _changed_groups(data, new, len(encoded))]

    def _edit(self, places: list[tuple[int, int]], encoded: bytes, low: int, high: int) -> Edit:
        start, stop = places[low][0], places[high - 1][1]
        out = bytearray(self._raw[start:stop])
        spoiled = any(self._raw[a:b].endswith(b"/") and b - a > 1 for a, b in places[low:high])
        for number in range(low, high):
            a, b = places[number]
            # `\\/` is an escaped slash; no other character can be written in its place.
            char = b"*" * (b - a) if spoiled else _escape_as(self._raw[a:b], encoded[number : number + 1])
            out[a - start : b - start] = char
        return Edit(self.at + start, bytes(out))

    def _release(self, size: int, decoded: int) -> None:
        self.at += size
        self._raw = self._raw[size:]
        self._decoded += decoded
        self._fed -= decoded


def _strip_separators(raw: bytes) -> bytes:
    """Return only the characters of base64, without line breaks and escapes."""
    # Numbers, as in `has_messages`.
    has_escapes = 0x5C in raw
    chars = _SEPARATOR.sub(b"", raw) if has_escapes or 0x0A in raw else raw
    if has_escapes or 0x25 in raw:
        chars = _ESCAPED.sub(lambda match: b"+" if match.group()[-1:] in b"bB" else b"/", chars)
    return chars


def _mask_breaks(raw: bytes) -> bytes:
    """Replace line breaks by zero bytes, since escaped ones contain letters."""
    return _SEPARATOR.sub(lambda match: bytes(len(match.group())), raw)


def _decode(chars: bytes) -> bytes:
    chars = chars[: len(chars) - (len(chars) % 4 == 1)]
    return b64decode(chars.translate(_STANDARD) + b"=" * (-len(chars) % 4))


def _keep_last_bits(encoded: bytes, chars: bytes) -> bytes:
    """Keep the unused last bits of the old base64: at the end of a piece they belong to the next one."""
    spare = {2: 15, 3: 3}.get(len(chars) % 4, 0) if len(chars) == len(encoded) else 0
    if not spare:
        return encoded
    old, new = (_ALPHABET.index(one[-1:].translate(_STANDARD)) for one in (chars, encoded))
    return encoded[:-1] + _ALPHABET[new | (old & spare) :][:1]


def _end_of_chars(raw: bytes, chars: bytes, count: int) -> int:
    """Return the offset in the window at which this number of characters ends."""
    if len(chars) == len(raw) or count == 0:
        return count
    end = 0
    for number, found in enumerate(_chars(_mask_breaks(raw)), 1):
        end = found.end()
        if number == count:
            break
    return end


def _changed_groups(old: bytes, new: bytearray, size: int) -> Iterable[tuple[int, int]]:
    """Return the groups of characters that changed, as ranges of characters."""
    ranges: list[tuple[int, int]] = []
    for at in range(0, len(old), 3):
        if old[at : at + 3] != new[at : at + 3]:
            low, high = at // 3 * 4, min(at // 3 * 4 + 4, size)
            if ranges and ranges[-1][1] == low:
                ranges[-1] = ranges[-1][0], high
            else:
                ranges.append((low, high))
    return ranges


def _escape_as(raw: bytes, char: bytes) -> bytes:
    """Write a character in the same escape form as the one that it replaces."""
    match raw[:1]:
        case b"%":
            return b"%%%02X" % ord(char)
        case b"\\":
            return raw[:-2] + b"%02x" % ord(char)
        case _:
            return char
