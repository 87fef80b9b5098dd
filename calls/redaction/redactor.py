"""Redact everything that is recorded or looked up in replay, before it reaches a disk.

The same rules and key always give the same result, and redacted data passes unchanged. So a recording, the request that is
matched against it, and a secret that comes back as its placeholder all agree. `calls.placeholder` defines the replacement of
a secret, `calls.redaction.rules.credentials` the rules.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from calls.keys.profile import Profile, Profiles, QueryRules
from calls.model import Headers, Request, header
from calls.placeholder import make_placeholder
from calls.redaction import head as redact_head
from calls.redaction.body import BodyRedactor, apply_edits, create_body_redactor, create_plain_redactor, is_plain
from calls.redaction.declared import DeclaredSecrets
from calls.redaction.head import Replace, Treatment
from calls.redaction.rules.credentials import RULES
from calls.redaction.rules.named_values import compile_expressions
from calls.redaction.rules.personal_data import PERSONAL_DATA
from calls.redaction.rules.personal_names import rules_for_names
from calls.redaction.rules.secret_rule import SecretRule
from calls.redaction.scanning.layered_scanner import LayeredScanner
from calls.redaction.scanning.scanner import RuleTable
from calls.redaction.settings import RedactionSettings
from calls.redaction.streams.message_bounds import has_messages
from calls.redaction.streams.streamed_messages import StreamedMessages
from calls.redaction.streams.streamed_text import StreamedText
from calls.redaction.web_tokens import AnswerRuleTable


class RedactionRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for what is secret."""

    credentials: tuple[SecretRule, ...] = RULES
    kept_headers: frozenset[str] = frozenset()
    """Names of request headers, in lower case, that are kept because a profile puts them into keys."""


CACHE_SIZE = 1024
"""The number of header values that a redactor caches. They never leave the process."""


MAX_CACHED_LENGTH = 4096
"""Longer values, in characters, are not cached."""

HEAD_CACHE_SIZE = 256
"""The number of request heads that a redactor caches, and of response heads with different names."""

MAX_JOINED_BODY = 16 << 10
"""Longer bodies, in bytes, are not copied to be searched together with their head."""


class RedactedHead(NamedTuple):
    """A redacted request head."""

    url: str
    headers: Headers
    redactions: int
    redactor: "Redactor"
    """The redactor for the profile that applies to the request."""

    new_body_redactor: Callable[[], BodyRedactor]
    """Creates the redactor for the body."""

    is_plain: bool
    """Whether the body needs no redaction if `Redactor.is_clean` returns true for it."""

    length_at: int | None = None
    """The index of the Content-Length, of which another number changes nothing else; None if there is not exactly one."""


# Not frozen: one is created for each call, as in `DownstreamHead`.
class RedactedAnswerHead(msgspec.Struct):
    """A redacted response head. Treat it as immutable."""

    headers: Headers
    redactions: int
    content_type: str | None
    content_encoding: str | None
    is_plain: bool
    """Whether the body needs no redaction if `Redactor.is_clean` returns true for it."""


class _ResponseShape:
    """What response heads with the same field names have in common."""

    __slots__ = ("clean_values", "encoding_at", "is_kept", "type_at")

    def __init__(self, *, is_kept: bool, type_at: int | None, encoding_at: int | None) -> None:
        self.is_kept = is_kept
        """Whether all values are kept, as far as the names decide, and no name contains a secret."""

        self.type_at = type_at
        self.encoding_at = encoding_at
        """The indexes of Content-Type and Content-Encoding."""

        self.clean_values: tuple[str, ...] = ()
        """The values of the last head in which no secret was found, unless they are long."""

    def new_values(self, values: tuple[str, ...]) -> list[str]:
        """Return the values that are not those of the last head, in the same place."""
        old_values = self.clean_values
        if not old_values:
            return list(values)
        return [value for at, value in enumerate(values) if value != old_values[at]]

    def remember(self, values: tuple[str, ...]) -> None:
        """Remember values in which no secret was found."""
        self.clean_values = values if len("".join(values)) <= MAX_CACHED_LENGTH else ()


@lru_cache(4)
def _compile_table(rules: tuple[SecretRule, ...]) -> RuleTable:
    return RuleTable(rules)


@lru_cache(4)
def _compile_answer_table(rules: tuple[SecretRule, ...]) -> AnswerRuleTable:
    return AnswerRuleTable(rules)


class Redactor:
    """Redacts with rules and a key. One redactor serves all exchanges; `for_request` returns the one for a profile."""

    def __init__(
        self,
        rules: RedactionRules | None = None,
        key: bytes = b"",
        profiles: Profiles | None = None,
        *,
        personal_data: bool = False,
        names: tuple[str, ...] = (),
        keep_token_claims: bool = False,
    ) -> None:
        """`names` are names of people (`calls.redaction.rules.personal_names`). `keep_token_claims`: of signed web tokens in answers
        only the signature is replaced (`calls.redaction.web_tokens`).
        """
        if not key:
            raise ValueError("redaction needs a key: without one, secrets could be guessed from their placeholders")
        self._rules = rules or RedactionRules()
        self._key = key
        personal = (*(PERSONAL_DATA if personal_data else ()), *rules_for_names(names))
        rules_of_tables = (*self._rules.credentials, *personal)
        self._table = _compile_table(rules_of_tables)
        self._answer_table = _compile_answer_table(rules_of_tables) if keep_token_claims else self._table
        self._kept_headers = (
            self._rules.kept_headers | (profiles.key_headers if profiles else frozenset())
        ) - redact_head.CREDENTIALS.keys()
        self._profiles = profiles
        self._query: QueryRules | None = None
        # Agents send and receive the same headers repeatedly, and the result depends on nothing but the value.
        self._treat_cached = lru_cache(CACHE_SIZE)(self._treat)
        self._redact_name_cached = lru_cache(CACHE_SIZE)(self._redact_name)
        self._search_cached = lru_cache(CACHE_SIZE)(self._has_no_secret)
        self._response_shapes: dict[tuple[str, ...], _ResponseShape] = {}
        self._request_treatment = lru_cache(CACHE_SIZE)(self._request_header_treatment)
        self._redact_head_cached = lru_cache(HEAD_CACHE_SIZE)(self._redact_head)
        self._declared_secrets: DeclaredSecrets | None = None
        self._by_profile = (
            {profile.name: self._for_profile(profile) for profile in profiles.profiles} if profiles else {}
        )

    def prepare(self) -> None:
        """Compile all expressions now, and not when the first text or stream is redacted."""
        for compile_next in (*self.preparations(), *self.stream_preparations()):
            compile_next()

    def preparations(self) -> Sequence[Callable[[], object]]:
        """Return the first part of `prepare` in parts: what every text needs, in replay too."""
        tables = [step for table in self._tables for step in table.preparations()]
        return *tables, redact_head.secret_header, redact_head.secret_suffix

    def stream_preparations(self) -> Sequence[Callable[[], object]]:
        """Return the rest of it in parts: what streams need, and values before their names."""
        return *(step for table in self._tables for step in table.stream_preparations()), compile_expressions

    @property
    def _tables(self) -> Sequence[RuleTable]:
        return (self._table,) if self._answer_table is self._table else (self._table, self._answer_table)

    def redact_request_head(self, method: str, url: str, headers: Headers) -> RedactedHead:
        """Redact a request head. Heads of one client mostly differ in Content-Length only, so the rest is cached."""
        length, other_headers = _split_content_length(headers)
        if length is None:
            return self._redact_head_cached(method, url, headers)
        head = self._redact_head_cached(method, url, other_headers)
        new_headers = (*head.headers[:length], headers[length], *head.headers[length:])
        return head._replace(headers=new_headers, length_at=length)

    def _redact_head(self, method: str, url: str, headers: Headers) -> RedactedHead:
        redactor = self.for_request(method, url, headers)
        new_url, in_url = redactor.redact_url(url)
        new_headers, in_headers = redactor.redact_request_headers(headers)
        kind = header(headers, "content-type"), header(headers, "content-encoding")
        plain = redactor._declared_secrets is None and is_plain(*kind)
        return RedactedHead(
            new_url, new_headers, in_url + in_headers, redactor, partial(redactor.new_body_redactor, *kind), plain
        )

    def redact_response_head(self, headers: Headers) -> RedactedAnswerHead:
        """Redact a response head."""
        shape, values = self._response_parts(headers)
        kind, encoding = _value_at(values, shape.type_at), _value_at(values, shape.encoding_at)
        plain = self._declared_secrets is None and is_plain(kind, encoding)
        # True of most responses; a single search through the values that are new is then sufficient.
        if shape.is_kept:
            new_values = shape.new_values(values)
            if not new_values or self._has_no_secret("\n".join(new_values)):
                shape.remember(values)
                return RedactedAnswerHead(headers, 0, kind, encoding, plain)
        return RedactedAnswerHead(*self.redact_response_headers(headers), kind, encoding, plain)

    def redact_whole_response(self, headers: Headers, body: bytes) -> RedactedAnswerHead | None:
        """Redact the head of a complete response whose body needs no redaction; return None if the body may need it.

        Line ends separate what is searched together. A secret in one part is found in the whole as well: to the rules, a line
        end before it is the same as the start of the text, and what follows it hides no match.
        """
        # As few function calls as possible: nearly every answer is redacted by this method alone.
        shape, values = self._response_parts(headers)
        kind = None if shape.type_at is None else values[shape.type_at]
        encoding = None if shape.encoding_at is None else values[shape.encoding_at]
        if self._declared_secrets is not None or not is_plain(kind, encoding):
            return None
        if shape.is_kept and len(body) <= MAX_JOINED_BODY:
            new_values = shape.new_values(values)
            data = _encode("\n".join([*new_values, ""]))[0] + body if new_values else body
            if self._table.is_clean(data) and not (has_messages(body) and self._has_streamed_secret(body)):
                if new_values:
                    shape.remember(values)
                return RedactedAnswerHead(headers, 0, kind, encoding, is_plain=True)
        return self.redact_response_head(headers) if self.is_clean(body) else None

    def _response_parts(self, headers: Headers) -> tuple[_ResponseShape, tuple[str, ...]]:
        """Return what is known by the names of a response head, and its values."""
        names, values = tuple([name for name, _ in headers]), tuple([value for _, value in headers])
        shape = self._response_shapes.get(names)
        if shape is None:
            is_kept, type_at, encoding_at = _response_fields(names)
            is_kept = is_kept and self._has_no_secret("\n".join(names))
            shape = _ResponseShape(is_kept=is_kept, type_at=type_at, encoding_at=encoding_at)
            if len(self._response_shapes) >= HEAD_CACHE_SIZE:
                self._response_shapes.clear()
            self._response_shapes[names] = shape
        return shape, values

    def is_clean(self, data: bytes) -> bool:
        """Whether a single search finds no secret in a whole body, which is true of nearly all."""
        return self._table.is_clean(data) and not (has_messages(data) and self._has_streamed_secret(data))

    def _has_streamed_secret(self, data: bytes) -> bool:
        """Whether the messages of a whole stream contain a secret in pieces."""
        return bool(StreamedText(self._table, self._key).feed(data, last=True))

    def for_request(self, method: str, url: str, headers: Headers) -> "Redactor":
        """Return the redactor for a request: this one, unless the profile for the request declares secrets."""
        if self._profiles is None:
            return self
        profile = self._profiles.match(Request(method=method, url=url, headers=headers))
        return self._by_profile.get(profile.name, self)

    def _for_profile(self, profile: Profile) -> "Redactor":
        if not (profile.secret or profile.query.secret):
            return self
        scoped = copy(self)
        scoped._profiles = None
        scoped._query = profile.query
        scoped._declared_secrets = DeclaredSecrets.from_paths(profile.secret) if profile.secret else None
        return scoped

    def redact_url(self, url: str) -> tuple[str, int]:
        """Redact a URL; return it with the number of secrets."""
        tally = _Tally(self._key)
        return self._replace_secrets(redact_head.redact_url(url, tally.replace, self._is_declared), tally), tally.count

    def _is_declared(self, name: str) -> bool:
        return self._query is not None and self._query.field_class(name) == "secret"

    def redact_request_headers(self, headers: Headers) -> tuple[Headers, int]:
        """Redact headers or trailers of a request; return them with the number of secrets."""
        return self._redact_headers(headers, self._request_treatment)

    def _request_header_treatment(self, name: str) -> Treatment:
        return "seen" if name.lower() in self._kept_headers else redact_head.request_treatment(name)

    def redact_response_headers(self, headers: Headers) -> tuple[Headers, int]:
        """Redact headers or trailers of a response; return them with the number of secrets."""
        return self._redact_headers(headers, redact_head.response_treatment)

    def redact_text(self, text: str) -> str:
        """Redact a text that is stored with an exchange: an error, an id from the client."""
        if not text.isascii():  # it may contain lone surrogates, which cannot be written
            text = text.encode("utf-8", "replace").decode()
        return text if self._is_clean(text) else self._replace_secrets(text, _Tally(self._key))

    def redact_body(
        self,
        data: bytes,
        content_type: str | None = None,
        content_encoding: str | None = None,
        *,
        is_answer: bool = False,
    ) -> tuple[bytes, int, bool]:
        """Redact a whole body; return it with the number of secrets and whether it was compressed again.

        A body that cannot be redacted is returned empty: it would not be recorded either.
        """
        return redact_whole_body(self.new_body_redactor(content_type, content_encoding, is_answer=is_answer), data)

    def redact_message(self, data: bytes) -> tuple[bytes, int]:
        """Redact a WebSocket message; return it with the number of secrets.

        Raises UnreadableBody if it may contain declared secrets and is not valid JSON.
        """
        edits = self._declared_secrets.find_message_edits(data, self._key) if self._declared_secrets else []
        is_json = data[:1] in (b"{", b"[")
        body = create_plain_redactor(self._table, self._key, "application/json" if is_json else "", is_stream=is_json)
        pieces = [*body.feed(apply_edits(data, 0, edits), 0), *body.finish()]
        return b"".join(piece.data for piece in pieces), len(edits) + sum(piece.redactions for piece in pieces)

    def new_message_redactor(self) -> StreamedMessages:
        """Create the redactor for one side of a WebSocket: for each message, and for secrets in pieces over several."""
        return StreamedMessages(self._table, self._key, self.redact_message)

    def new_body_redactor(
        self, content_type: str | None = None, content_encoding: str | None = None, *, is_answer: bool = False
    ) -> BodyRedactor:
        """Create the redactor for one body. `is_answer`: a client may read it in a replay, so web tokens may keep their claims."""
        table = self._answer_table if is_answer else self._table
        return create_body_redactor(table, self._key, content_type, content_encoding, self._declared_secrets)

    def _redact_headers(self, headers: Headers, treatment: Callable[[str], Treatment]) -> tuple[Headers, int]:
        # True of most responses; a single search is then sufficient.
        if {treatment(name) for name, _ in headers} <= {"seen"} and self._is_clean(
            "\n".join([text for header in headers for text in header])
        ):
            return headers, 0
        tally = _Tally(self._key)
        scanned_places: list[int] = []
        new: list[tuple[str, str]] = []
        for name, value in headers:
            how = treatment(name)
            if how in ("seen", "address", "binary"):
                scanned_places.append(len(new))
            if how != "seen":
                value, count = self._treat_cached(how, value)
                tally.count += count
            name, count = self._redact_name_cached(name)
            tally.count += count
            new.append((name, value))
        # A single search through all values that are kept: in hardly any request is there a secret left.
        if not self._is_clean("\n".join(new[n][1] for n in scanned_places)):
            for n in scanned_places:
                new[n] = (new[n][0], self._replace_secrets(new[n][1], tally))
        return tuple(new), tally.count

    def _treat(self, treatment: Treatment, value: str) -> tuple[str, int]:
        """Redact a header's value; return it with the number of secrets."""
        tally = _Tally(self._key)
        if treatment == "binary":  # gRPC's: base64 of a message
            return self._replace_in_text(value, tally, is_binary=True), tally.count
        return _treat_value(treatment, value, tally.replace), tally.count

    def _redact_name(self, name: str) -> tuple[str, int]:
        """Redact a header's name, which may contain a secret too."""
        tally = _Tally(self._key)
        return self._replace_secrets(name, tally), tally.count

    def _has_no_secret(self, text: str) -> bool:
        data = _encode(text)[0]
        return self._table.is_clean(data)

    def _is_clean(self, text: str) -> bool:
        # A long text rarely recurs, and a thousand of them would take too much memory.
        return self._search_cached(text) if len(text) <= MAX_CACHED_LENGTH else self._has_no_secret(text)

    def _replace_secrets(self, text: str, tally: "_Tally") -> str:
        return text if self._is_clean(text) else self._replace_in_text(text, tally)

    def _replace_in_text(self, text: str, tally: "_Tally", *, is_binary: bool = False) -> str:
        data, codec = _encode(text)
        edits = LayeredScanner(self._table, self._key, is_binary=is_binary).feed(data, last=True)
        tally.count += len(edits)
        return apply_edits(data, 0, edits).decode(codec) if edits else text


def create_redactor(settings: RedactionSettings, key: bytes, profiles: Profiles | None = None) -> Redactor:
    """Create the redactor for what a user has set."""
    return Redactor(
        key=key,
        profiles=profiles,
        personal_data=settings.personal_data,
        names=settings.names,
        keep_token_claims=settings.keep_token_claims,
    )


def redact_whole_body(body: BodyRedactor, data: bytes) -> tuple[bytes, int, bool]:
    """Redact a whole body; return it with the number of secrets and whether it was compressed again."""
    pieces = [*body.feed(data, 0), *body.finish()]
    return b"".join([piece.data for piece in pieces]), sum([piece.redactions for piece in pieces]), body.is_reencoded


def _response_fields(names: tuple[str, ...]) -> tuple[bool, int | None, int | None]:
    """Return whether all response headers of these names are kept, and the indexes of Content-Type and -Encoding."""
    lowered = [name.lower() for name in names]
    kind, encoding = (lowered.index(name) if name in lowered else None for name in ("content-type", "content-encoding"))
    return {redact_head.response_treatment(name) for name in names} <= {"seen"}, kind, encoding


def _value_at(values: tuple[str, ...], place: int | None) -> str | None:
    return None if place is None else values[place]


def _split_content_length(headers: Headers) -> tuple[int | None, Headers]:
    """Return the index of the Content-Length and the other headers; None if there is not exactly one with a number."""
    found = [at for at, (name, _) in enumerate(headers) if len(name) == 14 and name.lower() == "content-length"]
    if len(found) != 1 or not headers[found[0]][1].isdigit():
        return None, headers
    return found[0], headers[: found[0]] + headers[found[0] + 1 :]


class _Tally:
    """Makes placeholders and counts them."""

    __slots__ = ("_key", "count")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.count = 0

    def replace(self, text: str, kind: str) -> str:
        new = make_placeholder(_encode(text)[0], kind, self._key).decode("ascii")
        self.count += new != text
        return new


def _treat_value(treatment: Treatment, value: str, replace: Replace) -> str:
    match treatment:
        case "seen" | "binary":
            return value
        case "secret":
            return replace(value, "H")
        case "scheme":
            return redact_head.redact_authorization(value, replace)
        case "cookies":
            return redact_head.redact_cookies(value, replace)
        case "set-cookie":
            return redact_head.redact_set_cookie(value, replace)
        case "protocols":
            return redact_head.redact_protocols(value, replace)
        case "address":
            return redact_head.redact_url(value, replace)


def _encode(text: str) -> tuple[bytes, str]:
    """Encode text: text from the wire has one code point for each byte, other text may not."""
    try:
        return text.encode("latin-1"), "latin-1"
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace"), "utf-8"
