"""Make the key of a request: the digest of the fields that count, by the rules of its profile.

The key is SHA-256 under the domain `key/1` of the canonical list [profile, dialect, operation, selected]. `selected` is
all that went in: method, upstream, path, query, declared headers, and what the profile keeps of the body. Everything
that did not go in as it came is noted with its rule, so that `explain` can show it.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from calls import placeholder
from calls.codec import body
from calls.codec.canonical import canonical_parsed, digest, unicode
from calls.codec.json import parse
from calls.keys.divergence import readable
from calls.keys.key_selection import LeftOut, NormalizedField, Notes, RenamedId, Selection
from calls.keys.profile import NEVER_KEYS, HeaderRules, Profile, Profiles
from calls.keys.rules import tree
from calls.keys.strict_key import strict_key
from calls.model import Headers, Json, Kind, Request
from calls.route import Route, route_of, target

DOMAIN: Final = "key/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyResult:
    """A key, and how it came about."""

    key: str
    profile: str
    route: Route
    selected: Json
    """What went in."""
    notes: Notes = field(compare=False, repr=False)
    """What was left out, renamed, folded or is unknown."""
    warnings: tuple[str, ...]
    sent: Request = field(compare=False, repr=False)
    read: body.Read = field(compare=False, repr=False)

    @property
    def request(self) -> Json:
        """The whole body as it was read, also what did not go in."""
        return self.read.value

    @property
    def strict(self) -> str:
        """The key of all that the request says, under no profile. Made when it is asked for."""
        return strict_key(self.sent, self.read)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What did not go in."""
        return self.notes.left_out

    @property
    def renamed(self) -> tuple[RenamedId, ...]:
        """Ids that went in by where they occur first."""
        return self.notes.renamed

    @property
    def folded(self) -> tuple[NormalizedField, ...]:
        """What went in in the one spelling of several that are equal."""
        return self.notes.folded

    @property
    def dialect(self) -> str:
        """The wire shape of the request."""
        return self.route.dialect

    @property
    def operation(self) -> str:
        """What was asked for, in the dialect's words."""
        return self.route.operation

    @property
    def kind(self) -> Kind:
        """What is asked: a model, a tool, …"""
        return self.route.kind


def keyed(request: Request, profiles: Profiles) -> KeyResult:
    """The key of a (redacted) request. Total: there is no request without a key."""
    route = route_of(request)
    profile = profiles.find(route)
    read = body.read(request, is_json=route.dialect != "generic")
    selection = Selection(keep_unknown=profile.unknown == "key")
    if route.place != route.path:
        selection.notes.folds.append(("/path", "place"))
    selected = {
        "method": route.method,
        "upstream": route.upstream,
        "path": route.place,
        "query": _query(request, profile, selection),
        "headers": _headers(request.headers, profile.headers),
        "form": read.form if not profile.told else "told",
        "body": _body(read, profile, selection),
    }
    text = canonical_parsed([profile.name, route.dialect, route.operation, selected])
    text, whole = _without_redaction(text, selected)
    return KeyResult(
        key=digest(DOMAIN, text),
        profile=profile.name,
        route=route,
        selected=whole,
        notes=selection.notes,
        warnings=(
            *_unclassified(selection.notes.unknown, profile),
            *([read.warning] if read.warning and not profile.told else ()),
        ),
        sent=request,
        read=read,
    )


def _body(read: body.Read, profile: Profile, selection: Selection) -> Json:
    if profile.told:
        selection.notes.skipped.append(("/body", "told"))
        return None
    match read.form:
        case "none":
            return None
        case "json" | "lines" | "form" | "multipart" | "messages":
            value = selection.named(read.value, profile.plan.root, "/body") if profile.folds.names else read.value
            return selection.body(value, tree(profile.plan, value, read.text), "/body")
        case _:
            return read.value  # rules on fields have nothing to hold on to


def _query(request: Request, profile: Profile, selection: Selection) -> Json:
    _, _, query = target(request.url)
    kept: list[Json] = []
    for name, value in body.pairs(query) if query else ():
        field_class = profile.query.field_class(name)
        if selection.takes(field_class, ("/query", name)):
            kept.append([name, value])
    return kept


def _headers(headers: Headers, rules: HeaderRules) -> Json:
    if not (rules.key or rules.sets or rules.media):
        return {}
    wanted = _wanted(rules)
    given: dict[str, list[str]] = {}
    for name, value in headers:
        if (low := name.lower()) in wanted:
            given.setdefault(low, []).append(unicode(value.strip()))
    if not given:
        return {}  # as with nearly all requests
    kept: dict[str, Json] = {name: ", ".join(given[name]) for name in rules.key if name in given}
    kept |= {name: sorted(_items(given[name])) for name in rules.sets if name in given}
    kept |= {name: media for name in rules.media if (media := _media(given.get(name, ())))}
    return kept


@lru_cache(64)
def _wanted(rules: HeaderRules) -> frozenset[str]:
    return frozenset((*rules.key, *rules.sets, *rules.media))


def _items(values: Iterable[str]) -> set[str]:
    return {item.strip() for value in values for item in value.split(",") if item.strip()}


_ANY: Final = frozenset(("*/*", "application/*", "application/json"))


def _media(values: Iterable[str]) -> list[Json]:
    """The media types that select a form of the answer; none where the client takes anything, or JSON."""
    types = {item.partition(";")[0].strip().lower() for item in _items(values)}
    return [] if types & _ANY else [*sorted(types - {"text/event-stream"})]


def _without_redaction(text: bytes, selected: Json) -> tuple[bytes, Json]:
    """Placeholders by type and first occurrence: their own text hangs on a secret that another machine does not have."""
    if placeholder.MARK not in text:
        return text, selected
    folded = placeholder.fold(text.decode()).encode()
    return folded, parse(folded)[-1]  # type: ignore[index] # it is the list that was just written


def _unclassified(pointers: Iterable[str], profile: Profile) -> Iterable[str]:
    went = "went into" if profile.unknown == "key" else "was left out of"
    for pointer in pointers:
        yield (
            f"{readable(pointer)} is not classified by the profile {profile.name} and {went} the key: "
            "list it as key, transient or identity in a profile of your own"
        )


def raw_digest(request: Request) -> str:
    """The digest of a request as it stands: equal digests have equal keys, under any profiles.

    Headers that no profile may declare are skipped, because they change with every sending.
    """
    body = hashlib.sha256(request.body.data).digest()
    return raw_digest_of(request.method, request.url, request.headers, body)


def raw_digest_of(method: str, url: str, headers: Headers, body: bytes) -> str:
    """The same of a request of which only the SHA-256 of its body is at hand."""
    told = "\0".join((method, url, *_telling(headers))).encode("utf-8", "surrogatepass")
    return "sha256:" + hashlib.sha256(b"raw/2\0" + told + b"\0\0" + body).hexdigest()


def _telling(headers: Headers) -> list[str]:
    return sorted([f"{lowered}:{value}" for name, value in headers if (lowered := _tells(name))])


@lru_cache(maxsize=4096)
def _tells(name: str) -> str:
    """A header's name in lower case; nothing where it changes with every sending."""
    lowered = name.lower()
    return "" if NEVER_KEYS.fullmatch(lowered) else lowered
