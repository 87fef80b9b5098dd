"""Redact whatever is recorded, and whatever is looked up in replay, before anything reaches a disk.

The same rules and the same key always give the same result, and what was redacted passes unchanged: so a recording, the
request that asks for it again, and a secret that comes back as its placeholder all agree. See `placeholder` for what
stands in place of a secret, `credentials` for what is one.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from calls.keys.profile import Profile, Profiles, Query
from calls.model import Headers, Request, header
from calls.placeholder import make
from calls.redaction import head as redact_head
from calls.redaction.body import BodyRedactor, apply_edits, is_plain, plain_body, redactor_of
from calls.redaction.declared import DeclaredSecrets
from calls.redaction.head import Replace, Treatment
from calls.redaction.rules.credentials import RULES
from calls.redaction.rules.personal_data import PERSONAL_DATA
from calls.redaction.rules.personal_names import rules_for_names
from calls.redaction.rules.secret_rule import SecretRule
from calls.redaction.scanning.layered_scanner import LayeredScanner
from calls.redaction.scanning.scanner import Table
from calls.redaction.streams.message_bounds import has_messages
from calls.redaction.streams.streamed_messages import StreamedMessages
from calls.redaction.streams.streamed_text import StreamedText


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What counts as secret."""

    credentials: tuple[SecretRule, ...] = RULES
    keep: frozenset[str] = frozenset()
    """Request headers, in lower case, that stay because a profile makes keys of them."""


REMEMBERED = 1024
"""How many values of headers a redactor keeps in mind; they never leave the process."""


LONGEST_REMEMBERED = 4096
"""Characters of a value that is kept in mind."""

HEADS = 256
"""And how many beginnings of requests."""


class Head(NamedTuple):
    """What a request begins with, without its secrets."""

    url: str
    headers: Headers
    redactions: int
    redactor: "Redactor"
    """What the profile that rules on the request wants."""

    body: Callable[[], BodyRedactor]
    """What redacts the body behind it."""

    plain: bool
    """Whether that may stay as it is where it is `is_clean`."""


class AnswerHead(NamedTuple):
    """What a response begins with, without its secrets."""

    headers: Headers
    redactions: int
    content_type: str | None
    content_encoding: str | None
    plain: bool
    """Whether the body behind it may stay as it is where it is `is_clean`."""


@lru_cache(4)
def _table_of(rules: tuple[SecretRule, ...]) -> Table:
    return Table(rules)


class Redactor:
    """Rules with a key. One serves all exchanges; `of` has what serves the requests that a profile rules on."""

    def __init__(
        self,
        rules: Rules | None = None,
        key: bytes = b"",
        profiles: Profiles | None = None,
        *,
        personal_data: bool = False,
        names: tuple[str, ...] = (),
    ) -> None:
        """`names` are those of people; see `personal_names`."""
        if not key:
            raise ValueError("redaction needs a key: without one, secrets could be guessed from their placeholders")
        self._rules = rules or Rules()
        self._key = key
        personal = (*(PERSONAL_DATA if personal_data else ()), *rules_for_names(names))
        self._table = _table_of((*self._rules.credentials, *personal))
        self._keep = (
            self._rules.keep | (profiles.headers if profiles else frozenset())
        ) - redact_head.CREDENTIALS.keys()
        self._profiles = profiles
        self._query: Query | None = None
        # An agent sends and gets the same headers again and again; what a value becomes depends on nothing else.
        self._treat_remembered = lru_cache(REMEMBERED)(self._treat)
        self._name = lru_cache(REMEMBERED)(self._searched_name)
        self._remembered_clean = lru_cache(REMEMBERED)(self._clean)
        self._are_clean = lru_cache(REMEMBERED)(lambda names: self._clean("\n".join(names)))
        self._request_treatment = lru_cache(REMEMBERED)(self._of_request)
        self._head = lru_cache(HEADS)(self._new_head)
        self._declared_secrets: DeclaredSecrets | None = None
        self._scoped = {profile.name: self._for(profile) for profile in profiles.profiles} if profiles else {}

    def head(self, method: str, url: str, headers: Headers) -> Head:
        """A request's head. A client's mostly are alike but for the body's length, and so it is found out once."""
        length, others = _apart(headers)
        if length is None:
            return self._head(method, url, headers)
        head = self._head(method, url, others)
        seen = head.headers
        return Head(head.url, (*seen[:length], headers[length], *seen[length:]), *head[2:])

    def _new_head(self, method: str, url: str, headers: Headers) -> Head:
        redactor = self.of(method, url, headers)
        seen_url, in_url = redactor.url(url)
        seen, in_headers = redactor.request_headers(headers)
        kind = header(headers, "content-type"), header(headers, "content-encoding")
        plain = redactor._declared_secrets is None and is_plain(*kind)
        return Head(seen_url, seen, in_url + in_headers, redactor, partial(redactor.stream, *kind), plain)

    def answer(self, headers: Headers) -> AnswerHead:
        """A response's head."""
        names, values = zip(*headers, strict=True) if headers else ((), ())
        shown, kind_at, encoding_at = self._answers_of(names)
        kind = None if kind_at is None else values[kind_at]
        encoding = None if encoding_at is None else values[encoding_at]
        plain = self._declared_secrets is None and is_plain(kind, encoding)
        # So are most, and then one search is all.
        if shown and self._clean("\n".join(values)):
            return AnswerHead(headers, 0, kind, encoding, plain)
        return AnswerHead(*self.response_headers(headers), kind, encoding, plain)

    def _answers_of(self, names: tuple[str, ...]) -> tuple[bool, int | None, int | None]:
        shown, kind_at, encoding_at = _answers_of(names)
        return shown and self._are_clean(names), kind_at, encoding_at

    def is_clean(self, data: bytes) -> bool:
        """Whether nothing in a whole body looks like a secret, as one search says: so it is with nearly all."""
        return self._table.is_clean(data) and not self._spells_out(data)

    def _spells_out(self, data: bytes) -> bool:
        """Whether the messages of a stream that came whole make a secret together."""
        return has_messages(data) and bool(StreamedText(self._table, self._key).feed(data, last=True))

    def of(self, method: str, url: str, headers: Headers) -> "Redactor":
        """The redactor for this request: this one, unless the profile that rules on it declares secrets of its own."""
        if self._profiles is None:
            return self
        profile = self._profiles.match(Request(method=method, url=url, headers=headers))
        return self._scoped.get(profile.name, self)

    def _for(self, profile: Profile) -> "Redactor":
        if not (profile.secret or profile.query.secret):
            return self
        scoped = copy(self)
        scoped._profiles = None
        scoped._query = profile.query
        scoped._declared_secrets = DeclaredSecrets.of(profile.secret) if profile.secret else None
        return scoped

    def url(self, url: str) -> tuple[str, int]:
        """A URL without its secrets, and how many there were."""
        tally = _Tally(self._key)
        return self._search(redact_head.address(url, tally.replace, self._is_declared), tally), tally.count

    def _is_declared(self, name: str) -> bool:
        return self._query is not None and self._query.field_class(name) == "secret"

    def request_headers(self, headers: Headers) -> tuple[Headers, int]:
        """Headers (or trailers) of a request."""
        return self._headers(headers, self._request_treatment)

    def _of_request(self, name: str) -> Treatment:
        return "seen" if name.lower() in self._keep else redact_head.request_treatment(name)

    def response_headers(self, headers: Headers) -> tuple[Headers, int]:
        """Headers (or trailers) of a response."""
        return self._headers(headers, redact_head.response_treatment)

    def text(self, text: str) -> str:
        """Words that are kept beside an exchange: an error, an id that a client sent."""
        if not text.isascii():  # they may come from anywhere, and have to be written
            text = text.encode("utf-8", "replace").decode()
        return text if self._is_clean(text) else self._search(text, _Tally(self._key))

    def whole(
        self, data: bytes, content_type: str | None = None, content_encoding: str | None = None
    ) -> tuple[bytes, int, bool]:
        """A whole body, how many secrets were in it, and whether it had to be compressed again.

        One that hides what cannot be redacted comes back empty: it would not have been recorded either.
        """
        return all_of(self.stream(content_type, content_encoding), data)

    def message(self, data: bytes) -> tuple[bytes, int]:
        """One message of a WebSocket, and how many secrets were in it. Raises Unreadable, where a profile's may be in it."""
        edits = self._declared_secrets.edits_of_message(data, self._key) if self._declared_secrets else []
        is_json = data[:1] in (b"{", b"[")
        body = plain_body(self._table, self._key, "application/json" if is_json else "", is_stream=is_json)
        pieces = [*body.feed(apply_edits(data, 0, edits), 0), *body.finish()]
        return b"".join(piece.data for piece in pieces), len(edits) + sum(piece.redactions for piece in pieces)

    def messages(self) -> StreamedMessages:
        """What redacts one side of a WebSocket as its messages come, and what they spell out together."""
        return StreamedMessages(self._table, self._key, self.message)

    def stream(self, content_type: str | None = None, content_encoding: str | None = None) -> BodyRedactor:
        """What redacts one body as it comes."""
        return redactor_of(self._table, self._key, content_type, content_encoding, self._declared_secrets)

    def _headers(self, headers: Headers, treatment: Callable[[str], Treatment]) -> tuple[Headers, int]:
        # So are most responses, and then one search is all.
        if {treatment(name) for name, _ in headers} <= {"seen"} and self._is_clean(
            "\n".join([text for header in headers for text in header])
        ):
            return headers, 0
        tally = _Tally(self._key)
        seen: list[int] = []
        new: list[tuple[str, str]] = []
        for name, value in headers:
            how = treatment(name)
            if how in ("seen", "address", "binary"):
                seen.append(len(new))
            if how != "seen":
                value, count = self._treat_remembered(how, value)
                tally.count += count
            name, count = self._name(name)
            tally.count += count
            new.append((name, value))
        # One search through all that can still be read: in hardly any request is there anything left to find.
        if not self._is_clean("\n".join(new[n][1] for n in seen)):
            for n in seen:
                new[n] = (new[n][0], self._search(new[n][1], tally))
        return tuple(new), tally.count

    def _treat(self, treatment: Treatment, value: str) -> tuple[str, int]:
        """A header's value, and how many secrets it had."""
        tally = _Tally(self._key)
        if treatment == "binary":  # gRPC's: base64 of a message
            return self._replace_found(value, tally, is_binary=True), tally.count
        return _treat_value(treatment, value, tally.replace), tally.count

    def _searched_name(self, name: str) -> tuple[str, int]:
        """A header's name, in which somebody may have put a secret."""
        tally = _Tally(self._key)
        return self._search(name, tally), tally.count

    def _clean(self, text: str) -> bool:
        data = _encode(text)[0]
        return self._table.is_clean(data)

    def _is_clean(self, text: str) -> bool:
        # A long text hardly comes twice, and a thousand of them would take all the memory there is.
        return self._remembered_clean(text) if len(text) <= LONGEST_REMEMBERED else self._clean(text)

    def _search(self, text: str, tally: "_Tally") -> str:
        return text if self._is_clean(text) else self._replace_found(text, tally)

    def _replace_found(self, text: str, tally: "_Tally", *, is_binary: bool = False) -> str:
        data, codec = _encode(text)
        edits = LayeredScanner(self._table, self._key, is_binary=is_binary).feed(data, last=True)
        tally.count += len(edits)
        return apply_edits(data, 0, edits).decode(codec) if edits else text


def all_of(body: BodyRedactor, data: bytes) -> tuple[bytes, int, bool]:
    """A whole body, redacted, how many secrets were in it, and whether it had to be compressed again."""
    pieces = [*body.feed(data, 0), *body.finish()]
    return b"".join([piece.data for piece in pieces]), sum([piece.redactions for piece in pieces]), body.reencoded


@lru_cache(REMEMBERED)
def _answers_of(names: tuple[str, ...]) -> tuple[bool, int | None, int | None]:
    """Whether a response's headers of these names may all be seen, and where its content's type and its coding stand."""
    lowered = [name.lower() for name in names]
    kind, encoding = (lowered.index(name) if name in lowered else None for name in ("content-type", "content-encoding"))
    return {redact_head.response_treatment(name) for name in names} <= {"seen"}, kind, encoding


def _apart(headers: Headers) -> tuple[int | None, Headers]:
    """Where the one Content-Length stands, and the others; None where there is not one that is a number."""
    found = [at for at, (name, _) in enumerate(headers) if len(name) == 14 and name.lower() == "content-length"]
    if len(found) != 1 or not headers[found[0]][1].isdigit():
        return None, headers
    return found[0], headers[: found[0]] + headers[found[0] + 1 :]


class _Tally:
    """Makes placeholders, and counts them."""

    __slots__ = ("_key", "count")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.count = 0

    def replace(self, text: str, kind: str) -> str:
        new = make(_encode(text)[0], kind, self._key).decode("ascii")
        self.count += new != text
        return new


def _treat_value(treatment: Treatment, value: str, replace: Replace) -> str:
    match treatment:
        case "seen" | "binary":
            return value
        case "secret":
            return replace(value, "H")
        case "scheme":
            return redact_head.keep_scheme(value, replace)
        case "cookies":
            return redact_head.cookies(value, replace)
        case "set-cookie":
            return redact_head.set_cookie(value, replace)
        case "address":
            return redact_head.address(value, replace)


def _encode(text: str) -> tuple[bytes, str]:
    """Text of the wire has one code point for each byte; what else comes here may have others."""
    try:
        return text.encode("latin-1"), "latin-1"
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace"), "utf-8"
