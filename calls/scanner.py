"""Find credentials in a stream, however it is cut: the same result for any pieces, holding back as little as can be.

One RE2 expression answers both questions in one pass: does a secret start here, and may the end of what we have be the
beginning of one? Only such a tail waits. A secret that has begun is followed to its end, at most `LONGEST` bytes at a
time, so that memory is bounded and nothing leaks, however long it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import re2

from calls.credentials import AROUND, RULES, End, Rule, in_blob
from calls.patterns import begun, full
from calls.placeholder import MARK, is_placeholder, make

LONGEST: Final = 8192
"""A longer secret is replaced in blocks of this size. Divisible by 8, so that runs of backslashes keep their meaning."""

_AHEAD: Final = 16
"""How many bytes behind a block can be needed to see where it ends."""

_PREFIX: Final = 8
"""Letters that are no secret beside a placeholder."""

# A word may start right after an escape of JSON or of a URL, though the escape's last character is a letter.
_ESCAPE = r"\\[bfnrt]|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2}"
_ESCAPE_BEGUN = r"\\(?:[bfnrt]|u[0-9A-Fa-f]{0,4})?|%[0-9A-Fa-f]{0,2}"

_ANYWHERE = re2._Anchor.UNANCHORED
_HERE = re2._Anchor.ANCHOR_START
_NOTHING = [(-1, -1)]


class Edit(NamedTuple):
    """Bytes to be put at an offset of the stream, in place of as many."""

    at: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Found:
    rule: Rule
    lead: int
    start: int
    seen: int
    """Up to where it is surely the secret: from here its end is looked for."""

    end: End


class Table:
    """Rules, compiled. RE2's own `Match` is called, since to scan 200 bytes costs less than a wrapper around it."""

    def __init__(self, rules: Iterable[Rule] = RULES) -> None:
        rules = tuple(rules)
        bounded = [rule for rule in rules if rule.bounded]
        free = [rule for rule in rules if not rule.bounded]
        self._rules = (*bounded, *free)

        def join(expression: Callable[[Rule], str]) -> str:
            return "|".join([rf"(?:\b|{_ESCAPE})(?:{'|'.join(map(expression, bounded))})", *map(expression, free)])

        starts = join(lambda rule: full(rule.lead + rule.begin))
        tails = join(lambda rule: begun(rule.lead + rule.begin))
        self.open = _compiled(rf"(?:{tails}|{_ESCAPE_BEGUN})\z|{starts}").Match
        self._last = _compiled(starts).Match
        self._which = _compiled(join(lambda rule: f"{full(rule.lead)}({full(rule.begin)})")).Match

    def first(self, data: bytes, at: int, *, last: bool) -> tuple[int, int]:
        """Where a secret starts, or, unless this is the last piece, may have started: then it reaches the end."""
        (span,) = (self._last if last else self.open)(_ANYWHERE, data, at, len(data))
        return span  # type: ignore[no-any-return]

    def which(self, data: bytes, at: int) -> _Found:
        """The rule by which a secret starts here, and where the secret itself starts and how it ends."""
        spans = self._which(_HERE, data, at, len(data))
        group = next(n for n, (start, _) in enumerate(spans) if n and start >= 0)
        rule, (start, seen) = self._rules[group - 1], spans[group]
        return _Found(rule, at, start, seen, rule.end(data, start))


def _compiled(expression: str) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = 64 << 20
    options.log_errors = False
    return re2.compile(expression.encode("latin-1"), options)._regexp


class Scanner:
    """One stream. `feed` says what to change, `decided` up to which offset nothing will change any more."""

    __slots__ = ("_after", "_before", "_inside", "_key", "_match", "_rest", "_table", "decided")

    def __init__(self, table: Table, key: bytes, *, before: bytes = b"\n") -> None:
        self._table = table
        self._match = table.open
        self._key = key
        self._before = before
        self._rest = b""
        self._inside: _Found | None = None
        self._after = 0
        """Where the last secret ended. What it was must decide nothing: it will be read as what stands in its place."""
        self.decided = 0

    def passes(self, data: bytes) -> bool:
        """Take the next piece if it is decided at once that nothing of it changes, as with nearly all of a stream of events."""
        if (
            self._before[-1:] != b"\n"
            or self._rest
            or self._inside
            or self._match(_ANYWHERE, data, 0, len(data)) != _NOTHING
        ):
            return False
        self.decided += len(data)
        self._before = data[-AROUND:] or b"\n"
        return True

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
        done = self._scan(text, at, edits, last=last)
        self.decided += done - at
        self._rest = text[done:]
        self._before = text[max(0, done - AROUND) : done] or self._before
        return edits

    def _scan(self, text: bytes, at: int, edits: list[Edit], *, last: bool) -> int:
        """Decide as much of the text from `at` on as can be; return up to where."""
        offset = self.decided - at
        while True:
            found = self._going_on(at) or self._next(text, at, last=last)
            if isinstance(found, int):
                return found
            stop = found.end(text, found.seen)
            if stop == len(text) and not last and stop - found.start < LONGEST + _AHEAD:
                return found.lead
            at = self._settle(text, found, stop, edits, offset)

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
        cut = _block(text, found.start, stop)
        secret = text[found.start : cut]
        replaced = is_placeholder(secret) or _follows_its_prefix(secret)
        if not (self._inside or (replaced and cut == stop) or self._real(text, found, stop, offset)):
            return found.start if found.rule.lead else cut
        self._after = offset + cut
        if secret and not replaced:
            edits.append(Edit(offset + found.start, make(secret, found.rule.kind, self._key)))
        self._inside = found if cut < stop else None
        return cut

    def _real(self, text: bytes, found: _Found, stop: int, offset: int) -> bool:
        if found.rule.apart and in_blob(text[max(0, self._after - offset, found.start - AROUND) : found.start]):
            return False
        return found.rule.real(text, found.lead, found.start, min(stop, found.start + LONGEST))


def _follows_its_prefix(secret: bytes) -> bool:
    """Whether all but a few letters was replaced before: `sk-` and a placeholder may look like a token that the text was not."""
    at = secret.find(MARK)
    return 0 < at <= _PREFIX and is_placeholder(secret[at:])


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
