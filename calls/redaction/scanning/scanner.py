"""Find secrets in a stream of bytes: the same result for any pieces, holding back as little as possible.

One RE2 expression answers both questions in one pass: does a secret start here, and may the end of what we have be the
beginning of one? Only such a tail waits. A secret that has begun is followed to its end, at most `LONGEST` bytes at a
time, so that memory is bounded and nothing leaks, however long it is.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

from calls.placeholder import MARK, is_placeholder, make
from calls.redaction.rules.credentials import RULES, in_blob
from calls.redaction.rules.expression import ANYWHERE, HERE, compile_expression
from calls.redaction.rules.patterns import beginnings, full
from calls.redaction.rules.secret_rule import AROUND, ESCAPE, End, SecretRule
from calls.redaction.scanning.encoded_text import (
    IN_PIECE,
    IN_SPELLED_TEXT,
    IN_WHOLE,
    TEXT_GROUP_BEGINNING,
    TEXT_RUN_BEGINNING,
)

LONGEST: Final = 8192
"""A longer secret is replaced in blocks of this size. Divisible by 8, so that runs of backslashes keep their meaning."""

_AHEAD: Final = 16
"""How many bytes behind a block can be needed to see where it ends."""

_GOES_ON: Final = re.compile(rb"[^\s\"'<>\\{}()\[\],;&]+")
"""What may stand between where one secret ends and where another ends that begins inside of it."""

_REREAD: Final = 256
"""A secret of more bytes is not looked through for the beginning of another one."""

_INNER: Final = 8
"""Nor is it after so many that did not go on behind it."""

_SHORT: Final = 64
"""How long that may be, which is no secret though it begins like one, that is read again from its second byte on."""

_PREFIX: Final = 8
"""Letters that are no secret beside a placeholder."""

_WORD: Final = 32
_WORDS: Final = 8192
"""How many pieces of text are remembered, of so many bytes at most."""

CHANGEABLE: Final = -2
"""In place of an offset: more than a name, or something to decode, is or may begin in a text."""

CONTEXT: Final = -3
"""Of base64 no more than a part of the first group may begin at its end: it stays, and is needed to read what follows."""

_ESCAPE_BEGINNING = r"\\(?:[bfnrt]|u[0-9A-Fa-f]{0,4})?|%[0-9A-Fa-f]{0,2}|\[[0-9;]{0,12}m?|[\x12\x1a\xc4\xd9][ -~]?|[\xda\xc5](?:[\x00-\xff][ -~]?)?|x\w?"

_NOTHING = [(-1, -1)]
_SPELLED = compile_expression(IN_SPELLED_TEXT).Match
_BEGINNING = compile_expression(TEXT_RUN_BEGINNING).Match
_GROUP_BEGINNING = compile_expression(TEXT_GROUP_BEGINNING).Match


class Edit(NamedTuple):
    """Bytes to be put at an offset of the stream, in place of as many."""

    at: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Found:
    rule: SecretRule
    lead: int
    start: int
    seen: int
    """Up to where it is surely the secret: from here its end is looked for."""

    end: End


class Table:
    """Rules, compiled. RE2's own `Match` is called, since to scan 200 bytes costs less than a wrapper around it."""

    def __init__(self, rules: Iterable[SecretRule] = RULES) -> None:
        rules = tuple(rules)
        bounded = [rule for rule in rules if rule.bounded]
        free = [rule for rule in rules if not rule.bounded]
        self._rules = (*bounded, *free)

        def join(expression: Callable[[SecretRule], str]) -> str:
            return "|".join(
                [rf"(?:\b_{{0,2}}|{ESCAPE})(?:{'|'.join(map(expression, bounded))})", *map(expression, free)]
            )

        starts = join(lambda rule: full(rule.lead + rule.begin))
        tails = join(lambda rule: beginnings(rule.lead + rule.begin))
        self.open = compile_expression(rf"(?:{tails}|{_ESCAPE_BEGINNING})\z|{starts}").Match
        self._last = compile_expression(starts).Match
        self._anything = compile_expression(rf"(?:{tails}|{_ESCAPE_BEGINNING})\z|{starts}|{IN_PIECE}").Match
        self._anything_last = compile_expression(f"{starts}|{IN_WHOLE}").Match
        # A model's pieces of text are words, which are said again and again.
        self._name_in_word = lru_cache(_WORDS)(self._spelled_in)
        self._which = compile_expression(join(lambda rule: f"{full(rule.lead)}({full(rule.begin)})")).Match

    def first(self, data: bytes, at: int, *, last: bool) -> tuple[int, int]:
        """Where a secret starts, or, unless this is the last piece, may have started: then it reaches the end."""
        (span,) = (self._last if last else self.open)(ANYWHERE, data, at, len(data))
        return span  # type: ignore[no-any-return]

    def passes(self, data: bytes) -> bool:
        """Whether nothing in a piece is a secret or encoded, or the beginning of that."""
        return self._anything(ANYWHERE, data, 0, len(data)) == _NOTHING  # type: ignore[no-any-return]

    def is_clean(self, data: bytes) -> bool:
        """Whether nothing in a whole text is a secret or encoded."""
        return self._anything_last(ANYWHERE, data, 0, len(data)) == _NOTHING  # type: ignore[no-any-return]

    def changeable(self, data: bytes, at: int) -> int:
        """Where the first byte may stand that is, or begins, a secret or what announces one whole; -1 where none does.

        What may only be the beginning of a name stays as it is, whatever follows it.
        """
        while data[-2:-1] == b"\\" and data[-1:] in b"bfnrt" and data[-3:-2] != b"\\":
            data = data[:-2]  # the letter of an escape begins no word
        ((start, _),) = self._changeable(ANYWHERE, data, at, len(data))
        return start  # type: ignore[no-any-return]

    def name_in(self, text: bytes) -> int:
        """Where a name may begin in a spelled text behind the first byte; -1 where none does, or what else there is."""
        return self._name_in_word(text) if len(text) <= _WORD else self._spelled_in(text)

    def _name_in(self, text: bytes) -> int:
        ((start, _),) = self.open(ANYWHERE, text, 1, len(text))
        return CHANGEABLE if start >= 0 and self.changeable(text, 1) >= 0 else int(start)

    def may_begin_encoded(self, text: bytes) -> bool:
        """Whether in a piece of a spelled text there is nothing to decode but what may begin at its end."""
        size = len(text)
        return bool(_SPELLED(ANYWHERE, text, 0, size) == _NOTHING) and any(
            match(ANYWHERE, text, 0, size) != _NOTHING for match in (_BEGINNING, _GROUP_BEGINNING)
        )

    def _spelled_in(self, text: bytes) -> int:
        size = len(text)
        if any(match(ANYWHERE, text, 0, size) != _NOTHING for match in (_SPELLED, _BEGINNING)):
            return CHANGEABLE
        start = self._name_in(text)
        return start if start == CHANGEABLE or _GROUP_BEGINNING(ANYWHERE, text, 0, size) == _NOTHING else CONTEXT

    @cached_property
    def _changeable(self) -> Any:
        def part(rule: SecretRule) -> str:
            lead, begin = full(rule.lead), full(rule.begin)
            return rf"{lead}(?:{begin}|(?:{beginnings(rule.begin)})\z)" if rule.begin else lead

        bounded, free = ([rule for rule in self._rules if rule.bounded is is_bounded] for is_bounded in (True, False))
        return compile_expression(
            "|".join([rf"(?:\b_{{0,2}}|{ESCAPE})(?:{'|'.join(map(part, bounded))})", *map(part, free)])
        ).Match

    def which(self, data: bytes, at: int) -> _Found:
        """The rule by which a secret starts here, and where the secret itself starts and how it ends."""
        spans = self._which(HERE, data, at, len(data))
        group = next(n for n, (start, _) in enumerate(spans) if n and start >= 0)
        rule, (start, seen) = self._rules[group - 1], spans[group]
        return _Found(rule, at, start, seen, rule.end(data, start))


class Scanner:
    """One stream. `feed` says what to change, `decided_to` up to which offset nothing will change any more."""

    __slots__ = (
        "_after",
        "_before",
        "_inside",
        "_key",
        "_match",
        "_rest",
        "_table",
        "decided_to",
        "is_json",
        "is_stream",
    )

    def __init__(self, table: Table, key: bytes, *, before: bytes = b"\n", is_json: bool = False) -> None:
        self.is_json = is_json
        """Whether the stream is of JSON texts: a quote that nothing escapes begins or ends a string."""

        self.is_stream = False
        """Whether its strings may be pieces of a text that is searched as one as well."""

        self._table = table
        self._match = table.open
        self._key = key
        self._before = before
        self._rest = b""
        self._inside: _Found | None = None
        self._after = 0
        """Where the last secret ended. What it was must decide nothing: it will be read as what stands in its place."""
        self.decided_to = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits."""
        return not self._rest and not self._inside

    def may_begin_encoded(self, data: bytes) -> bool:
        """Whether of the next piece of a spelled text only the end may be, or begin, something to decode."""
        return not self._inside and self._table.may_begin_encoded(self._before[-1:] + self._rest + data)

    def passes(self, data: bytes) -> bool:
        """Take the next piece if it is decided at once that nothing of it changes, as with nearly all of a stream of events."""
        if not self.is_idle:
            return False
        # A word may have begun in the piece before: show the expression that piece's last byte.
        before = self._before
        new_line = before[-1:] == b"\n"
        text, at = (data, 0) if new_line else (before[-1:] + data, 1)
        if self._match(ANYWHERE, text, at, len(text)) != _NOTHING:
            return False
        self.skip(data)
        return True

    def with_context(self, data: bytes) -> bytes:
        """The next piece behind the byte before it, in which a word may have begun."""
        return data if self._before[-1:] == b"\n" else self._before[-1:] + data

    def skip(self, data: bytes) -> None:
        """Take a piece of which is known that nothing of it changes."""
        self.decided_to += len(data)
        before = self._before
        keeps = before[-1:] == b"\n" or len(data) >= AROUND
        self._before = (data if keeps else before + data)[-AROUND:] or b"\n"

    def name_in(self, data: bytes) -> int:
        """What may begin in the next piece of a spelled text, of which what waits is a part: see `Table.name_in`."""
        return CHANGEABLE if self._inside else self._table.name_in(self._before[-1:] + self._rest + data)

    def pass_on(self, data: bytes, name: int) -> None:
        """Take the next piece, in which no more than a name begins."""
        text = self._before[-1:] + self._rest + data
        end = len(text) if name < 0 else name
        self.decided_to += end - 1
        self._rest = text[end:]
        self._before = (self._before[-AROUND:] + text[1:end])[-AROUND:]

    @property
    def unchanged(self) -> int:
        """Up to which offset no byte will change: further than `decided_to` where what waits is a name, and no secret yet."""
        if self._inside or not self._rest:
            return self.decided_to
        start = self._table.changeable(self._before[-1:] + self._rest, 1)
        return self.decided_to + (len(self._rest) if start < 0 else max(0, start - 1))

    def feed(self, data: bytes, *, last: bool = False) -> Sequence[Edit]:
        """Take the next piece and tell what is to be replaced, in order; with `last` nothing stays undecided."""
        if not (data or self._rest or self._inside):
            return ()  # it ended before, and nothing was left open
        return self._feed(data, last=last)

    def _feed(self, data: bytes, *, last: bool) -> list[Edit]:
        rest = self._rest + data
        # A word may have begun in the piece before: show the expression that piece's last bytes.
        text, at = (rest, 0) if self._before[-1:] == b"\n" else (self._before + rest, len(self._before))
        edits: list[Edit] = []
        text, done = self._scan(text, at, edits, last=last)
        self.decided_to += done - at
        self._rest = text[done:]
        self._before = text[max(0, done - AROUND) : done] or self._before
        return edits

    def _scan(self, text: bytes, at: int, edits: list[Edit], *, last: bool) -> tuple[bytes, int]:
        """Decide as much of the text from `at` on as can be; return up to where, and the text as it is to be read from there."""
        offset = self.decided_to - at
        while True:
            found = self._going_on(at) or self._next(text, at, last=last)
            if isinstance(found, int):
                return text, found
            stop = found.end(text, found.seen)
            if stop + found.rule.ahead >= len(text) and not last and stop - found.start < LONGEST + _AHEAD:
                return text, found.lead
            if found.rule.inner:
                text = self._settle_inner(text, found, min(stop, found.start + LONGEST), edits, offset)
                at = found.start  # all other rules look at what is left in it
            else:
                further = self._end_of_overlapping(text, found, stop, offset, last=last)
                if further is None:
                    return text, found.lead
                at = self._settle(text, found, further, edits, offset)

    def _end_of_overlapping(self, text: bytes, found: _Found, stop: int, offset: int, *, last: bool) -> int | None:
        """Where the last secret ends that begins inside of this one, and goes on behind it; None: only more text can tell.

        `Bearer 1/38854…` is one, and ends at a colon; behind that goes on what is the key in `1/38854…:6c59b…`.
        """
        if self._inside or not found.start < stop <= found.start + _REREAD or MARK in text[found.start : stop]:
            return stop
        if not self._real(text, found, stop, offset):
            return stop
        at, limit = found.lead + 1, stop + LONGEST
        seen = text if len(text) <= limit else text[:limit]
        for _ in range(_INNER):
            start, end = self._table.first(seen, at, last=last)
            if start < 0 or start >= stop:
                return stop
            if end == len(text) and not last:
                return None
            other = self._table.which(seen, start)
            end = other.end(seen, other.seen)
            if end + other.rule.ahead >= len(text) and not last and not other.rule.inner:
                return None
            if stop < end and _GOES_ON.fullmatch(seen, stop, end) and self._real(seen, other, end, offset):
                return end
            at = start + 1
        return stop

    def _going_on(self, at: int) -> _Found | None:
        """The secret that we are inside of, longer than a block."""
        return self._inside and _Found(self._inside.rule, at, at, at, self._inside.end)

    def _next(self, text: bytes, at: int, *, last: bool) -> _Found | int:
        """The next secret, or up to where there is surely none."""
        start, end = self._table.first(text, at, last=last)
        if start < 0:
            return len(text)
        return start if end == len(text) and not last else self._table.which(text, start)

    def _settle(self, text: bytes, found: _Found, stop: int, edits: list[Edit], offset: int) -> int:
        """Replace a secret, or a block of a long one, unless it is none; return where to go on."""
        if not (found.rule.lead or self._inside):
            stop = _end_before_placeholder(text, found.start, stop)
        cut = _block(text, found.start, stop)
        secret = text[found.start : cut]
        # Where a piece ends, a backslash belongs to the quote that follows in the next one.
        replaced = (
            is_placeholder(secret.rstrip(b"\\") if cut == len(text) else secret)
            or _follows_its_prefix(text, found.start, cut)
            or (self.is_stream and _begins_one(secret))
        )
        if not (self._inside or (replaced and cut == stop) or self._real(text, found, stop, offset)):
            # A shorter name may begin inside of the lead, and another family's token behind the prefix.
            is_short = cut - found.start <= _SHORT
            return found.lead + 1 if found.rule.lead or is_short else max(cut, found.lead + 1)
        self._after = offset + cut
        if secret and not replaced:
            edits.append(Edit(offset + found.start, make(secret, found.rule.kind, self._key)))
        self._inside = found if cut < stop else None
        return cut

    def _settle_inner(self, text: bytes, found: _Found, stop: int, edits: list[Edit], offset: int) -> bytes:
        """Replace the secrets among several values; return the text without them."""
        assert found.rule.inner
        new = bytearray(text)
        for low, high in found.rule.inner(text, found.start, stop):
            secret = text[low:high]
            if MARK in secret or is_placeholder(secret):
                continue
            new[low:high] = make(secret, found.rule.kind, self._key)
            edits.append(Edit(offset + low, bytes(new[low:high])))
            self._after = offset + high
        return bytes(new)

    def _real(self, text: bytes, found: _Found, stop: int, offset: int) -> bool:
        if self.is_json and _ends_a_string(text, found):
            return False
        if self.is_stream and _may_begin_a_blank(text, found.start, stop):
            return False
        if _is_behind_length(text, found) and text[found.lead + 1] != stop - found.lead - 2:
            return False
        if found.rule.apart and in_blob(text[max(0, self._after - offset, found.start - AROUND) : found.start]):
            return False
        return found.rule.real(text, found.lead, found.start, min(stop, found.start + LONGEST))


def _is_behind_length(text: bytes, found: _Found) -> bool:
    """Whether all that separates this from the word before it is a header of CBOR (`x`) with a length that is a letter."""
    first = text[found.lead : found.lead + 2]
    if not found.rule.bounded or first[:1] != b"x" or not (first[1:].isalnum() or first[1:] == b"_"):
        return False
    # No lead begins with such an `x`.
    return found.rule.lead != () or found.start - found.lead == 2


def _ends_a_string(text: bytes, found: _Found) -> bool:
    """Whether the quote before a value ends the JSON string that its name stands in, and what follows is no value at all.

    So it is where a model's piece of text ends behind `\\"password\\": `: in JSON a value in quotes has a name in quotes.
    """
    lead = text[found.lead : found.start]
    if lead[-1:] != b'"' or lead[-2:-1] == b"\\":
        return False
    name = lead[:-1].rstrip().rstrip(b":=,").rstrip()
    return name[-1:] != b'"' or name[-2:-1] == b"\\"


def _may_begin_a_blank(text: bytes, start: int, stop: int) -> bool:
    """Whether a value begins as `<your key>` does, and ends only because its piece of a stream ends there.

    The search over all pieces decides, which sees the end of it.
    """
    if text[start : start + 1] not in (b"<", b"$", b"%", b"{"):
        return False
    is_escaped = text[start - 2 : start - 1] == b"\\"
    return stop == len(text) or (is_escaped and text[stop : stop + 1] == b'"' and text[stop - 1 : stop] != b"\\")


def _end_before_placeholder(text: bytes, start: int, stop: int) -> int:
    """Where a token ends that runs into a placeholder: what stood there was another secret, and is not to be judged again.

    Where a family's tokens hold no underscore, only the first letters of the placeholder belong to the run.
    """
    at = text.find(MARK, start + 1, stop + len(MARK) - 1)
    return at if start < at < stop and not text.startswith(MARK, start) else stop


def _follows_its_prefix(text: bytes, start: int, cut: int) -> bool:
    """Whether all but a few letters was replaced before: `sk-` and a placeholder may look like a token that the text was not.

    Where a family's tokens hold no underscore, the placeholder reaches beyond what looks like one.
    """
    at = text.find(MARK, start, cut + len(MARK) - 1)
    return start < at <= start + _PREFIX and (at + len(MARK) > cut or is_placeholder(text[at:cut]))


_BEGUN: Final = re.compile(rb"%s(?:[A-Z][A-Z2-7]?)?" % MARK)


def _begins_one(secret: bytes) -> bool:
    """Whether a placeholder begins here that goes on in the next piece of a text."""
    return secret != b"" and (MARK.startswith(secret) or _BEGUN.fullmatch(secret) is not None)


def _block(text: bytes, start: int, stop: int) -> int:
    """Where a block of a secret ends. What was replaced as a block is a block again, so that it passes unchanged."""
    limit = min(stop, start + LONGEST)
    if text.startswith(MARK, start):
        # A placeholder's letters go on into the next one's mark, as far as its underscore.
        following = text.find(MARK, start + 1, stop)
        return limit if following < 0 else following
    if text[start : start + 1] == b"*":
        return limit - len(text[start:limit].lstrip(b"*"))
    if limit == stop:
        return stop
    # Never inside a run of backslashes, which would change what the rest of it means.
    cut = start + len(text[start:limit].rstrip(b"\\"))
    return limit if cut == start else cut
