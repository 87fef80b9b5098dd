"""Find secrets in a stream of bytes, with the same result for any division into pieces, holding back as little as possible.

One RE2 expression finds both the start of a secret and a tail that may be the beginning of one; only such a tail is held
back. A secret that has begun is followed to its end in blocks of at most `MAX_BLOCK` bytes, so that memory is bounded and
secrets of any length are replaced.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from calls.placeholder import PREFIX, WEB_TOKEN_PLACEHOLDER, is_placeholder, make_placeholder
from calls.redaction.rules.command_values import is_of_another_command
from calls.redaction.rules.credentials import RULES, is_in_base64
from calls.redaction.rules.expression import ANYWHERE, HERE, compile_expression
from calls.redaction.rules.patterns import Word, beginnings_expression, full_expression, longest_repeat
from calls.redaction.rules.secret_rule import ESCAPE, LOOKBEHIND, End, SecretRule
from calls.redaction.scanning.encoded_text import (
    ESCAPE_BEGINNING,
    IN_SPELLED_TEXT,
    IN_WHOLE,
    PIECE_ENDS,
    TEXT_GROUP_BEGINNING,
    TEXT_RUN_BEGINNING,
)

MAX_BLOCK: Final = 8192
"""Longer secrets are replaced in blocks of this size. It is divisible by 8, so that runs of backslashes keep their meaning."""

_BLOCK_LOOKAHEAD: Final = 16
"""The number of bytes after a block that may be needed to find its end."""

_END_LIMIT: Final = MAX_BLOCK + 1024
"""The number of bytes after its start in which the end of a secret is searched: where a longer one ends changes nothing in a block."""

_INNER_CREDIT: Final = 16 * MAX_BLOCK
"""The bytes that lists and objects of secrets may hold, counted anew in each list around them, when none came before."""

_INNER_RATE: Final = 8
"""How many such bytes each byte of the stream adds."""

_CONTINUATION: Final = re.compile(rb"[^\s\"'<>\\{}()\[\],;&]+")
"""Matches the text between the end of one secret and the end of another that begins inside it."""

_MAX_REREAD: Final = 256
"""Longer secrets, in bytes, are not searched for the beginning of another one."""

_MAX_OVERLAPS: Final = 8
"""The number of secrets inside another one that are tried."""

_MAX_REREAD_REJECTED: Final = 64
"""The longest rejected match, in bytes, that is searched again from its second byte on."""

_MAX_PREFIX: Final = 8
"""The number of letters before a placeholder that are treated as its prefix, not as a secret."""

_WIDE: Final = 33
"""The repetitions of a part from which on a rule is wide."""

_MAX_WORD: Final = 32
_WORD_CACHE_SIZE: Final = 8192
"""The number of short texts, of at most `_MAX_WORD` bytes, whose result is cached."""

CHANGEABLE: Final = -2
"""Returned instead of an offset: the text contains or may begin a secret or encoded text, not only a name."""

CONTEXT: Final = -3
"""Returned instead of an offset: the text may end with part of the first group of a base64 run, which must be held."""

_LONGEST_WORD: Final = 256
"""Bytes that no first word of a wide rule exceeds, with what may stand before it."""

_NEVER = r"[^\x00-\xff]"
_ESCAPE_BEGINNING = r"\\(?:[bfnrt]|u[0-9A-Fa-f]{0,4})?|%[0-9A-Fa-f]{0,2}|\[[0-9;]{0,12}m?|[\x12\x1a\xc4\xd9][ -~]?|[\xda\xc5](?:[\x00-\xff][ -~]?)?|x\w?"

_SPELLED = compile_expression(rf"{ESCAPE_BEGINNING}\z|{IN_SPELLED_TEXT}").Match
_TEXT_END = compile_expression(rf"(?:{TEXT_RUN_BEGINNING}|{TEXT_GROUP_BEGINNING})\z").Match
_ENCODED_END = compile_expression(rf"(?:{ESCAPE_BEGINNING}|{TEXT_RUN_BEGINNING}|{TEXT_GROUP_BEGINNING})\z").Match
_LONG_ENCODED_END = compile_expression(rf"(?:{ESCAPE_BEGINNING}|{TEXT_RUN_BEGINNING})\z").Match


class Edit(NamedTuple):
    """A replacement: `data` takes the place of as many bytes at the offset `at` of the stream."""

    at: int
    data: bytes


class _Match(msgspec.Struct, frozen=True):
    rule: SecretRule
    lead: int
    start: int
    search_from: int
    """The end of the matched beginning of the secret, from which its end is searched."""

    end: End


class RuleTable:
    """Compiled rules. RE2's `Match` is called directly, because a wrapper costs more than scanning 200 bytes."""

    def __init__(self, rules: Iterable[SecretRule] = RULES) -> None:
        self._rules = tuple(sorted(rules, key=_rank))
        # A model's pieces of text are words, which recur.
        self._name_in_word = lru_cache(_WORD_CACHE_SIZE)(self._find_spelled_name)

    def _join(self, expression: Callable[[SecretRule], str], rules: Sequence[SecretRule] | None = None) -> str:
        """Join the expressions of rules, of all unless some are given."""
        rules = self._rules if rules is None else rules
        bounded, free, tokens = ([expression(rule) for rule in rules if _rank(rule) == rank] for rank in range(3))
        return "|".join([*_after_boundary(bounded), *free, *_after_boundary(tokens)]) or _NEVER

    # Compiled on first use: a worker that starts is ready 20 ms earlier.
    @cached_property
    def _starts(self) -> str:
        return self._join(lambda rule: full_expression(rule.lead + rule.begin))

    @cached_property
    def _last(self) -> Any:
        return compile_expression(self._starts).Match

    @cached_property
    def _anything_last(self) -> Any:
        return compile_expression(f"{self._starts}|{IN_WHOLE}").Match

    # And these, because few texts have a secret.
    @cached_property
    def _which(self) -> Any:
        return compile_expression(
            self._join(lambda rule: f"{full_expression(rule.lead)}({full_expression(rule.begin)})")
        ).Match

    # Compiled on first use, because whole texts are searched without them. Each is anchored at its end, so that RE2 searches
    # backwards and stops after a few bytes.
    @cached_property
    def _beginning(self) -> str:
        tails = self._join(lambda rule: beginnings_expression(rule.lead + rule.begin))
        return f"{tails}|{_ESCAPE_BEGINNING}"

    @cached_property
    def _tail(self) -> Any:
        """Matches a tail that may begin a secret."""
        return compile_expression(rf"(?:{self._beginning})\z").Match

    # Anything may follow the first word of a wide rule, so the automaton would get new states with nearly every text: 20 us for
    # each. A text without these words is searched for the rest.
    @cached_property
    def _short_tail(self) -> Any:
        """Matches a tail that may begin a secret, in a text without a first word of a wide rule."""
        tails = self._join(
            lambda rule: (
                first.beginnings if (first := _wide_first_word(rule)) else beginnings_expression(rule.lead + rule.begin)
            )
        )
        return compile_expression(rf"(?:{tails}|{_ESCAPE_BEGINNING})\z").Match

    @cached_property
    def _changeable_tail(self) -> Any:
        """Matches a tail with the whole lead of a secret and its beginning."""
        tails = self._join(
            lambda rule: full_expression(rule.lead) + f"(?:{beginnings_expression(rule.begin)})",
            [rule for rule in self._rules if rule.begin],
        )
        return compile_expression(rf"(?:{tails})\z").Match

    @cached_property
    def _wide_words(self) -> str:
        return "|".join([word.expression for rule in self._rules if (word := _wide_first_word(rule))])

    @cached_property
    def _wide_word(self) -> Any:
        return compile_expression(self._wide_words).Match

    @cached_property
    def _notable(self) -> Any:
        """Matches a secret, encoded text, or a first word of a wide rule, in a piece of a model's output."""
        return compile_expression(f"{self._starts}|{IN_SPELLED_TEXT}|{self._wide_words}").Match

    def preparations(self) -> Sequence[Callable[[], object]]:
        """Return what compiles what every search needs, in parts: other threads stand still during each, since RE2 holds the interpreter."""
        return (lambda: self._anything_last), (lambda: self._last)

    def stream_preparations(self) -> Sequence[Callable[[], object]]:
        """Return what compiles what searches in streams need besides, in parts.

        RE2 compiles an expression for searches backwards when it is first used for one.
        """
        return (
            lambda: self._tail,
            lambda: _search_end(self._tail),
            lambda: _search_end(self._short_tail),
            lambda: _search_end(self._changeable_tail),
            lambda: self._notable,
            lambda: self._wide_word,
        )

    def find_first(self, data: bytes, at: int, *, last: bool) -> tuple[int, int]:
        """Return the span of the first secret or, unless `last`, of a tail that may begin one and reaches the end."""
        size = len(data)
        (span,) = self._last(ANYWHERE, data, at, size)
        if last:
            return span  # type: ignore[no-any-return]
        # Only a tail that begins before the secret counts, so only a word up to there: else all the rest would be searched
        # for one at each of many secrets.
        end = size if span[0] < 0 else min(size, span[0] + _LONGEST_WORD)
        is_short = self._wide_word(ANYWHERE, data, at, end)[0][0] < 0
        (tail,) = (self._short_tail if is_short else self._tail)(ANYWHERE, data, at, size)
        is_tail_first = tail[0] >= 0 and not 0 <= span[0] < tail[0]
        return tail if is_tail_first else span  # type: ignore[no-any-return]

    def can_pass(self, data: bytes) -> bool:
        """Whether a piece contains no secret, no encoded text, and no beginning of either."""
        if data and data[-1] in PIECE_ENDS:
            return False
        return self._tail(ANYWHERE, data, 0, len(data))[0][0] < 0 and self.is_clean(data)

    def is_clean(self, data: bytes) -> bool:
        """Whether a whole text contains no secret and no encoded text."""
        return self._anything_last(ANYWHERE, data, 0, len(data))[0][0] < 0  # type: ignore[no-any-return]

    def find_changeable(self, data: bytes, at: int) -> int:
        """Return the offset of the first byte of a secret, a complete lead or the beginning of a secret; -1 if none.

        An incomplete name is kept, whatever follows it.
        """
        data = _without_last_escapes(data)
        ((start, _),) = self._last(ANYWHERE, data, at, len(data))
        ((tail, _),) = self._changeable_tail(ANYWHERE, data, at, len(data))
        return min(start, tail) if start >= 0 and tail >= 0 else max(start, tail)  # type: ignore[no-any-return]

    def find_name(self, text: bytes) -> int:
        """Return where a name may begin in a model's output after the first byte; -1, `CHANGEABLE` or `CONTEXT` if none."""
        return self._name_in_word(text) if len(text) <= _MAX_WORD else self._find_spelled_name(text)

    def may_begin_encoded_at_end(self, text: bytes) -> bool:
        """Whether this output of a model has no encoded text in it, but perhaps the beginning of one at its end."""
        size = len(text)
        is_possible = _TEXT_END(ANYWHERE, text, 0, size)[0][0] >= 0
        return is_possible and bool(_SPELLED(ANYWHERE, text, 0, size)[0][0] < 0)

    def _find_spelled_name(self, text: bytes) -> int:
        size = len(text)
        may_be_encoded = _ENCODED_END(ANYWHERE, text, 0, size)[0][0] >= 0
        if may_be_encoded and _LONG_ENCODED_END(ANYWHERE, text, 0, size)[0][0] >= 0:
            return CHANGEABLE
        if self._notable(ANYWHERE, text, 0, size)[0][0] < 0:
            ((start, _),) = self._short_tail(ANYWHERE, text, 1, size)
            is_changeable = start >= 0 and self._ends_changeable(_without_last_escapes(text))
        else:
            start, _ = self.find_first(text, 1, last=False)
            is_changeable = bool(_SPELLED(ANYWHERE, text, 0, size)[0][0] >= 0)
            is_changeable = is_changeable or (start >= 0 and self.find_changeable(text, 1) >= 0)
        if is_changeable:
            return CHANGEABLE
        return CONTEXT if may_be_encoded else start

    def _ends_changeable(self, text: bytes) -> bool:
        return bool(self._changeable_tail(ANYWHERE, text, 1, len(text))[0][0] >= 0)

    def make_placeholder(self, secret: bytes, kind: str, key: bytes) -> bytes:
        """Make the placeholder for a whole secret that was found as `kind`."""
        return make_placeholder(secret, kind, key)

    def match_rule(self, data: bytes, at: int) -> _Match:
        """Return the rule that matches at an offset, with the start of the secret and its end function."""
        spans = self._which(HERE, data, at, len(data))
        group = next(n for n, (start, _) in enumerate(spans) if n and start >= 0)
        rule, (start, search_from) = self._rules[group - 1], spans[group]
        return _Match(rule, at, start, search_from, rule.end(data, start))


class Scanner:
    """Scans one stream. `feed` returns the edits; before the offset `decided_to`, there will be no more."""

    __slots__ = (
        "_after",
        "_before",
        "_credit",
        "_credited_to",
        "_inside",
        "_key",
        "_rest",
        "_table",
        "decided_to",
        "is_json",
        "is_stream",
    )

    def __init__(self, table: RuleTable, key: bytes, *, before: bytes = b"\n", is_json: bool = False) -> None:
        self.is_json = is_json
        """Whether the stream consists of JSON texts: an unescaped quote begins or ends a string."""

        self.is_stream = False
        """Whether its strings may be pieces of a text that is also searched as a whole."""

        self._table = table
        self._key = key
        self._before = before
        self._rest = b""
        self._inside: _Match | None = None
        self._after = 0
        """The end of the last secret. Its text must not affect decisions, because only its placeholder is seen later."""
        self._credit = _INNER_CREDIT
        self._credited_to = 0
        """The offset of the last list of secrets that was searched, for which the credit is."""

        self.decided_to = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held back."""
        return not self._rest and not self._inside

    def may_begin_encoded_at_end(self, data: bytes) -> bool:
        """Whether the output has no encoded text up to this next piece, but perhaps the beginning of one at its end."""
        return not self._inside and self._table.may_begin_encoded_at_end(self._before[-1:] + self._rest + data)

    def with_context(self, data: bytes) -> bytes:
        """Return the next piece with the byte before it, in which a word may have begun."""
        return data if self._before[-1:] == b"\n" else self._before[-1:] + data

    def skip(self, data: bytes) -> None:
        """Skip a piece that is known not to change."""
        self.decided_to += len(data)
        before = self._before
        keeps = _ends_line(before) or len(data) >= LOOKBEHIND
        self._before = (data if keeps else before + data)[-LOOKBEHIND:] or b"\n"

    def try_pass_on(self, data: bytes) -> int:
        """Accept the next piece of a model's output if at most a name begins in it; return `RuleTable.find_name` of it."""
        if self._inside:
            return CHANGEABLE
        text = self._before[-1:] + self._rest + data
        name = self._table.find_name(text)
        if name >= -1:
            end = len(text) if name < 0 else name
            self.decided_to += end - 1
            self._rest = text[end:]
            self._before = (self._before[-LOOKBEHIND:] + text[1:end])[-LOOKBEHIND:]
        return name

    @property
    def unchanged_to(self) -> int:
        """The offset before which no byte will change: after `decided_to` if the held text is a name and no secret yet."""
        if self._inside or not self._rest:
            return self.decided_to
        start = self._table.find_changeable(self._before[-1:] + self._rest, 1)
        return self.decided_to + (len(self._rest) if start < 0 else max(0, start - 1))

    def feed(self, data: bytes, *, last: bool = False) -> Sequence[Edit]:
        """Feed the next piece; return the edits in order. `last`: decide everything."""
        if not (data or self._rest or self._inside):
            return ()  # the stream ended before, and nothing is held
        return self._feed(data, last=last)

    def _feed(self, data: bytes, *, last: bool) -> list[Edit]:
        rest = self._rest + data
        # A word may have begun in the previous piece: match with its last bytes as context.
        text, at = (rest, 0) if _ends_line(self._before) else (self._before + rest, len(self._before))
        edits: list[Edit] = []
        text, done = self._scan(text, at, edits, last=last)
        self.decided_to += done - at
        self._rest = text[done:]
        self._before = text[max(0, done - LOOKBEHIND) : done] or self._before
        return edits

    def _scan(self, text: bytes, at: int, edits: list[Edit], *, last: bool) -> tuple[bytes, int]:
        """Decide as much of the text from `at` on as possible; return the text with inner edits, and the end of the decided."""
        offset = self.decided_to - at
        while True:
            match = self._continued_secret(at) or self._next_secret(text, at, last=last)
            if isinstance(match, int):
                return text, match
            if match.rule.find_inner and self._inner_credit(match, offset) < MAX_BLOCK:
                at = match.start  # lists around it have been searched
                continue
            stop = match.end(text[: match.start + _END_LIMIT], match.search_from)
            if (
                stop + match.rule.lookahead >= len(text)
                and not last
                and stop - match.start < MAX_BLOCK + _BLOCK_LOOKAHEAD
            ):
                return text, match.lead
            if match.rule.find_inner:
                text = self._settle_inner(text, match, min(stop, match.start + MAX_BLOCK), edits, offset)
                at = match.start  # the other rules search what is left in it
            else:
                further = self._end_of_overlapping(text, match, stop, offset, last=last)
                if further is None:
                    return text, match.lead
                at = self._settle(text, match, further, edits, offset)

    def _end_of_overlapping(self, text: bytes, match: _Match, stop: int, offset: int, *, last: bool) -> int | None:
        """Return the end of a secret that begins inside this one and continues after it; None: more text is needed.

        `Bearer 1/38854…` is a secret that ends at a colon, after which the key `1/38854…:6c59b…` continues.
        """
        if self._inside or not match.start < stop <= match.start + _MAX_REREAD or PREFIX in text[match.start : stop]:
            return stop
        if not self._is_real(text, match, stop, offset):
            return stop
        at, limit = match.lead + 1, stop + MAX_BLOCK
        window = text if len(text) <= limit else text[:limit]
        for _ in range(_MAX_OVERLAPS):
            start, end = self._table.find_first(window, at, last=last)
            if start < 0 or start >= stop:
                return stop
            if end == len(text) and not last:
                return None
            other = self._table.match_rule(window, start)
            end = other.end(window, other.search_from)
            if end + other.rule.lookahead >= len(text) and not last and not other.rule.find_inner:
                return None
            if stop < end and _CONTINUATION.fullmatch(window, stop, end) and self._is_real(window, other, end, offset):
                return end
            at = start + 1
        return stop

    def _continued_secret(self, at: int) -> _Match | None:
        """Return the secret that is longer than a block and continues here, if there is one."""
        return self._inside and _Match(self._inside.rule, at, at, at, self._inside.end)

    def _next_secret(self, text: bytes, at: int, *, last: bool) -> _Match | int:
        """Return the next secret, or the offset up to which there is none."""
        start, end = self._table.find_first(text, at, last=last)
        while start >= 0 and (last or end < len(text)) and is_of_another_command(text, start):
            start, end = self._table.find_first(text, start + 1, last=last)
        if start < 0:
            return len(text)
        return start if end == len(text) and not last else self._table.match_rule(text, start)

    def _settle(self, text: bytes, match: _Match, stop: int, edits: list[Edit], offset: int) -> int:
        """Replace a real secret, or a block of a long one; return the offset from which to continue."""
        if not (match.rule.lead or self._inside):
            stop = _end_before_placeholder(text, match.start, stop)
        cut = _block_end(text, match.start, stop)
        secret = text[match.start : cut]
        # At the end of a piece, a backslash belongs to the quote that follows in the next one.
        replaced = (
            is_placeholder(secret.rstrip(b"\\") if cut == len(text) else secret)
            or _is_placeholder_after_prefix(text, match.start, cut)
            or (self.is_stream and _is_placeholder_start(secret))
        )
        if not (self._inside or (replaced and cut == stop) or self._is_real(text, match, stop, offset)):
            # A shorter name may begin inside the lead, and a token of another family after the prefix.
            is_short = cut - match.start <= _MAX_REREAD_REJECTED
            return match.lead + 1 if match.rule.lead or is_short else max(cut, match.lead + 1)
        self._after = offset + cut
        if secret and not replaced:
            make = make_placeholder if self._inside or cut < stop else self._table.make_placeholder
            edits.append(Edit(offset + match.start, make(secret, match.rule.kind, self._key)))
        self._inside = match if cut < stop else None
        return cut

    def _inner_credit(self, match: _Match, offset: int) -> int:
        """Return how many bytes of a list of secrets may be searched.

        Lists within lists are searched again for each one around them: 8 KB of nothing but their beginnings took 1.5 s.
        """
        return min(_INNER_CREDIT, self._credit + _INNER_RATE * (offset + match.start - self._credited_to))

    def _settle_inner(self, text: bytes, match: _Match, stop: int, edits: list[Edit], offset: int) -> bytes:
        """Replace the secrets among several values; return the redacted text."""
        assert match.rule.find_inner
        self._credit = self._inner_credit(match, offset) - (stop - match.start)
        self._credited_to = offset + match.start
        found = [
            (low, high)
            for low, high in match.rule.find_inner(text, match.start, stop)
            if PREFIX not in text[low:high] and not is_placeholder(text[low:high])
        ]
        if not found:
            return text
        new = bytearray(text)
        for low, high in found:
            secret = text[low:high]
            new[low:high] = self._table.make_placeholder(secret, match.rule.kind, self._key)
            edits.append(Edit(offset + low, bytes(new[low:high])))
            self._after = offset + high
        return bytes(new)

    def _is_real(self, text: bytes, match: _Match, stop: int, offset: int) -> bool:
        if self.is_json and _is_end_of_string(text, match):
            return False
        if self.is_stream and _can_begin_template(text, match.start, stop):
            return False
        if _is_behind_length(text, match) and text[match.lead + 1] != stop - match.lead - 2:
            return False
        if match.rule.is_outside_base64 and is_in_base64(
            text[max(0, self._after - offset, match.start - LOOKBEHIND) : match.start]
        ):
            return False
        return match.rule.is_real(text, match.lead, match.start, min(stop, match.start + MAX_BLOCK))


def _ends_line(before: bytes) -> bool:
    """Return whether what follows is in another line, which a command may continue after a backslash."""
    return before[-1:] == b"\n" and not before.endswith((b"\\\n", b"\\\r\n"))


def _without_last_escapes(data: bytes) -> bytes:
    """Return a text without the escapes at its end, whose letters do not begin a word."""
    while data[-2:-1] == b"\\" and data[-1:] in b"bfnrt" and data[-3:-2] != b"\\":
        data = data[:-2]
    return data


def _search_end(match: Any) -> None:
    match(ANYWHERE, b"-", 0, 1)


def _rank(rule: SecretRule) -> int:
    """Return which rules are tried first where several match at one place, of which one is tried.

    A name with what follows it says more than the beginning of a token: `"secret_access_key": ` begins like a token of Notion.
    """
    if not rule.is_bounded:
        return 1
    return 0 if rule.lead else 2


def _after_boundary(expressions: Sequence[str]) -> list[str]:
    return [rf"(?:\b_{{0,2}}|{ESCAPE})(?:{'|'.join(expressions)})"] if expressions else []


def _wide_first_word(rule: SecretRule) -> Word | None:
    """Return the first word of a rule in which nearly anything may follow it; None for other rules."""
    first = rule.lead[0] if rule.lead else None
    return first if isinstance(first, Word) and longest_repeat(rule.lead) >= _WIDE else None


def _is_behind_length(text: bytes, match: _Match) -> bool:
    """Return whether the match is preceded only by a CBOR header (`x`) with a length that is a letter."""
    first = text[match.lead : match.lead + 2]
    if not match.rule.is_bounded or first[:1] != b"x" or not (first[1:].isalnum() or first[1:] == b"_"):
        return False
    # No lead begins with an `x` like this.
    return match.rule.lead != () or match.start - match.lead == 2


def _is_end_of_string(text: bytes, match: _Match) -> bool:
    """Return whether the quote before a value ends the JSON string that contains its name, so that there is no value.

    This is so if a model's piece of text ends after `\\"password\\": `: in JSON, a quoted value has a quoted name.
    """
    lead = text[match.lead : match.start]
    if lead[-1:] != b'"' or lead[-2:-1] == b"\\":
        return False
    name = lead[:-1].rstrip().rstrip(b":=,").rstrip()
    return name[-1:] != b'"' or name[-2:-1] == b"\\"


def _can_begin_template(text: bytes, start: int, stop: int) -> bool:
    """Return whether a value begins like `<your key>` and ends only because its piece of a stream ends there.

    The search over all pieces, which sees its end, decides.
    """
    if text[start : start + 1] not in (b"<", b"$", b"%", b"{"):
        return False
    is_escaped = text[start - 2 : start - 1] == b"\\"
    return stop == len(text) or (is_escaped and text[stop : stop + 1] == b'"' and text[stop - 1 : stop] != b"\\")


def _end_before_placeholder(text: bytes, start: int, stop: int) -> int:
    """Return the end of a token that runs into a placeholder, which replaced another secret.

    If a family's tokens have no underscore, only the first letters of the placeholder belong to the run. The placeholder of
    a web token's signature belongs to the token.
    """
    if WEB_TOKEN_PLACEHOLDER.match(text, start, stop):
        return stop
    at = text.find(PREFIX, start + 1, stop + len(PREFIX) - 1)
    return at if start < at < stop and not text.startswith(PREFIX, start) else stop


def _is_placeholder_after_prefix(text: bytes, start: int, cut: int) -> bool:
    """Return whether a match is a few letters and a placeholder: `sk-` and a placeholder may look like a token.

    If a family's tokens have no underscore, the placeholder extends beyond the match.
    """
    at = text.find(PREFIX, start, cut + len(PREFIX) - 1)
    return start < at <= start + _MAX_PREFIX and (at + len(PREFIX) > cut or is_placeholder(text[at:cut]))


_PLACEHOLDER_START: Final = re.compile(rb"%s(?:[A-Z][A-Z2-7]?)?" % PREFIX)


def _is_placeholder_start(secret: bytes) -> bool:
    """Return whether a secret is the beginning of a placeholder that continues in the next piece of a text."""
    return secret != b"" and (PREFIX.startswith(secret) or _PLACEHOLDER_START.fullmatch(secret) is not None)


def _block_end(text: bytes, start: int, stop: int) -> int:
    """Return the end of a block of a secret. A block that was replaced is a block again, so that it passes unchanged."""
    limit = min(stop, start + MAX_BLOCK)
    if text.startswith(PREFIX, start):
        # A placeholder's letters continue into the prefix of the next one, up to its underscore.
        following = text.find(PREFIX, start + 1, stop)
        return limit if following < 0 else following
    if text[start : start + 1] == b"*":
        return limit - len(text[start:limit].lstrip(b"*"))
    if limit == stop:
        return stop
    # Never inside a run of backslashes, which would change the meaning of the rest.
    cut = start + len(text[start:limit].rstrip(b"\\"))
    return limit if cut == start else cut
