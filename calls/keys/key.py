"""Make the key of a request: the digest of the fields that count by the rules of its profile.

The key is SHA-256 under the domain `key/1` of the canonical list [profile, dialect, operation, selected]. `selected` holds
method, upstream, path, query, declared headers, and the fields of the body that the profile keeps. Every field that was left
out or changed is noted with its rule, so that `explain` can show it.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from calls import placeholder
from calls.codec import body
from calls.codec.canonical import canonical_parsed_json, escape_surrogates
from calls.codec.json import parse_json
from calls.codec.read_body import ReadBody
from calls.keys.divergence import shorten_pointer
from calls.keys.element_memory import BodyMemory, ElementMemory, TextPiece, hash_text, join_text
from calls.keys.key_selection import LeftOutField, NormalizedField, RenamedId, Selection, SelectionNotes
from calls.keys.profile import NEVER_KEYS, HeaderRules, Profile, Profiles
from calls.keys.rules import rule_tree
from calls.keys.strict_key import strict_key
from calls.model import CallKind, Headers, Json, Request
from calls.route import Route, route_request, split_url

DOMAIN: Final = "key/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyResult:
    """A key and how it was made."""

    key: str
    profile: str
    route: Route
    selected_fields: Json
    """The fields in the key."""
    notes: SelectionNotes = field(compare=False, repr=False)
    """The fields that were left out, renamed, normalized or are unknown."""
    warnings: tuple[str, ...]
    sent_request: Request = field(compare=False, repr=False)
    parsed_body: body.ParsedBody = field(compare=False, repr=False)

    @property
    def request_body(self) -> Json:
        """The whole body as it was read, including the fields that are not in the key."""
        return self.parsed_body.value

    @property
    def strict_key(self) -> str:
        """The key of everything in the request, regardless of the profile. Computed on access."""
        return strict_key(self.sent_request, self.parsed_body)

    @property
    def left_out_fields(self) -> tuple[LeftOutField, ...]:
        """The fields that are not in the key."""
        return self.notes.left_out_fields

    @property
    def renamed_ids(self) -> tuple[RenamedId, ...]:
        """The ids that are in the key by their first occurrence."""
        return self.notes.renamed_ids

    @property
    def normalized_fields(self) -> tuple[NormalizedField, ...]:
        """The fields that are in the key in a normalized form."""
        return self.notes.normalized_fields

    @property
    def dialect(self) -> str:
        """The dialect of the request."""
        return self.route.dialect

    @property
    def operation(self) -> str:
        """The operation, as the dialect names it."""
        return self.route.operation

    @property
    def kind(self) -> CallKind:
        """The kind of service that is called: a model, a tool, …"""
        return self.route.kind


def read_unkeyed(request: Request, memory: ElementMemory | None = None) -> KeyResult:
    """Read a request as `make_key` does, without selecting what counts: its key, its profile and its warnings are empty."""
    route, parsed = _read_request(request, memory)
    return KeyResult(
        key="",
        profile="",
        route=route,
        selected_fields=None,
        notes=SelectionNotes(),
        warnings=(),
        sent_request=request,
        parsed_body=parsed,
    )


def make_key(request: Request, profiles: Profiles, memory: ElementMemory | None = None) -> KeyResult:
    """Make the key of a (redacted) request. Every request has one. With a memory, elements that were read before are not read again."""
    route, parsed = _read_request(request, memory)
    profile = profiles.find(route)
    body_memory = BodyMemory(memory, parsed.read) if memory is not None and parsed.read is not None else None
    selection = Selection(keep_unknown=profile.unknown == "key", memory=body_memory)
    if route.key_path != route.path:
        selection.notes.folds.append(("/path", "place"))
    selected: dict[str, Json] = {
        "method": route.method,
        "upstream": route.upstream,
        "path": route.key_path,
        "query": _select_query(request, profile, selection),
        "headers": _select_headers(request.headers, profile.headers),
        # What recorded keys were made with: a better word here would change every key.
        "form": parsed.form if not profile.is_telemetry else "told",
        "body": _select_body(parsed, profile, selection),
    }
    names: list[Json] = [profile.name, route.dialect, route.operation]
    pieces, has_placeholder = _canonical_text(names, selected, body_memory)
    whole: Json = selected
    if has_placeholder:
        text, whole = _number_placeholders(join_text(pieces))
        pieces = [text]
    return KeyResult(
        key="sha256:" + hash_text([DOMAIN.encode() + b"\0", *pieces]),
        profile=profile.name,
        route=route,
        selected_fields=whole,
        notes=selection.notes,
        warnings=(
            *_unclassified_warnings(selection.notes.unknown_pointers, profile),
            *([parsed.warning] if parsed.warning and not profile.is_telemetry else ()),
        ),
        sent_request=request,
        parsed_body=parsed,
    )


def _read_request(request: Request, memory: ElementMemory | None) -> tuple[Route, body.ParsedBody]:
    """Find the route of a request and read its body."""
    data = request.body.data
    if memory is None:
        route = route_request(request)
        return route, body.parse_body(request, is_json=route.dialect != "generic")
    # A body is read first, since its names tell that it is no JSON-RPC.
    read = memory.read_body(data)
    route = route_request(request, None if read is None else read.frame)

    def read_elements(decoded: bytes) -> ReadBody | None:
        return read if decoded is data else memory.read_body(decoded)

    return route, body.parse_body(request, is_json=route.dialect != "generic", read_elements=read_elements)


def _canonical_text(
    names: list[Json], selected: dict[str, Json], memory: BodyMemory | None
) -> tuple[list[TextPiece], bool]:
    """Return the canonical list of the names and what was selected, from texts of elements where they are remembered.

    Also whether there is a placeholder in it.
    """
    fields = selected["body"]
    if memory is None or not isinstance(fields, dict) or (body_text := memory.members_text(fields)) is None:
        text = canonical_parsed_json([*names, selected])
        return [text], placeholder.PREFIX in text
    # "body" is the first of the names in `selected`.
    rest = canonical_parsed_json({name: value for name, value in selected.items() if name != "body"})
    head = canonical_parsed_json(names)[:-1]
    has_placeholder = memory.has_placeholder or placeholder.PREFIX in rest or placeholder.PREFIX in head
    return [head + b',{"body":', *body_text, b"," + rest[1:] + b"]"], has_placeholder


def _select_body(parsed: body.ParsedBody, profile: Profile, selection: Selection) -> Json:
    if profile.is_telemetry:
        selection.notes.left_out.append(("/body", "telemetry"))
        return None
    match parsed.form:
        case "none":
            return None
        case "json" | "lines" | "form" | "multipart" | "messages":
            value = (
                selection.normalize_names(parsed.value, profile.plan.root, "/body")
                if profile.folds.names
                else parsed.value
            )
            return selection.select_body(value, rule_tree(profile.plan, value, parsed.has_text), "/body")
        case _:
            return parsed.value  # there are no fields to which rules could apply


def _select_query(request: Request, profile: Profile, selection: Selection) -> Json:
    _, _, query = split_url(request.url)
    pairs: list[Json] = []
    for name, value in body.query_pairs(query) if query else ():
        field_class = profile.query.field_class(name)
        if selection.is_in_key(field_class, ("/query", name)):
            pairs.append([name, value])
    return pairs


def _select_headers(headers: Headers, rules: HeaderRules) -> Json:
    if not (rules.key or rules.sets or rules.media):
        return {}
    declared = _declared_names(rules)
    values_by_name: dict[str, list[str]] = {}
    for name, value in headers:
        if (low := name.lower()) in declared:
            values_by_name.setdefault(low, []).append(escape_surrogates(value.strip()))
    if not values_by_name:
        return {}  # true of nearly all requests
    selected: dict[str, Json] = {name: ", ".join(values_by_name[name]) for name in rules.key if name in values_by_name}
    selected |= {name: sorted(_list_items(values_by_name[name])) for name in rules.sets if name in values_by_name}
    selected |= {
        name: media for name in rules.media if (media := _selecting_media(tuple(values_by_name.get(name, ()))))
    }
    return selected


@lru_cache(64)
def _declared_names(rules: HeaderRules) -> frozenset[str]:
    return frozenset((*rules.key, *rules.sets, *rules.media))


def _list_items(values: Iterable[str]) -> set[str]:
    return {item.strip() for value in values for item in value.split(",") if item.strip()}


_ANY_MEDIA: Final = frozenset(("*/*", "application/*", "application/json"))


def _selecting_media(values: tuple[str, ...]) -> list[Json]:
    """Return the media types that select a form of the answer; none if the client accepts anything or JSON."""
    return [*_media_types(values)]


# A client accepts the same with every request.
@lru_cache(256)
def _media_types(values: tuple[str, ...]) -> tuple[str, ...]:
    types = {item.partition(";")[0].strip().lower() for item in _list_items(values)}
    return () if types & _ANY_MEDIA else tuple(sorted(types - {"text/event-stream"}))


def _number_placeholders(text: bytes) -> tuple[bytes, Json]:
    """Number placeholders by first occurrence: their text depends on a secret that other machines do not have."""
    folded = placeholder.number_placeholders(text.decode()).encode()
    return folded, parse_json(folded)[-1]  # type: ignore[index] # it is the list that was written above


def _unclassified_warnings(pointers: Iterable[str], profile: Profile) -> Iterable[str]:
    effect = "is in" if profile.unknown == "key" else "was left out of"
    for pointer in pointers:
        yield (
            f"{shorten_pointer(pointer)} is not classified by the profile {profile.name} and {effect} the key: "
            "list it as key, transient or identity in your own profile"
        )


def raw_digest(request: Request) -> str:
    """Return the digest of a request as it is. Requests with equal digests have equal keys under any profile.

    Headers that no profile may declare are skipped, because they change each time a request is sent.
    """
    body = hashlib.sha256(request.body.data).digest()
    return raw_digest_of_parts(request.method, request.url, request.headers, body)


def raw_digest_of_parts(method: str, url: str, headers: Headers, body: bytes) -> str:
    """Return the raw digest of a request from the SHA-256 of its body."""
    head = "\0".join((method, url, *_stable_headers(headers))).encode("utf-8", "surrogatepass")
    return "sha256:" + hashlib.sha256(b"raw/2\0" + head + b"\0\0" + body).hexdigest()


def _stable_headers(headers: Headers) -> list[str]:
    return sorted([f"{lowered}:{value}" for name, value in headers if (lowered := _stable_name(name))])


@lru_cache(maxsize=4096)
def _stable_name(name: str) -> str:
    """Return a header's name in lower case, or "" if the header changes each time a request is sent."""
    lowered = name.lower()
    return "" if NEVER_KEYS.fullmatch(lowered) else lowered
