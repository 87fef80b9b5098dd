"""Describe the recorded calls that are most similar to a missed request, and the rules that would ignore how they differ."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from calls.codec.encoding import Undecodable, decode_content
from calls.keys.divergence import Difference, shorten_pointer
from calls.keys.key import KeyResult, make_key
from calls.model import Json, Request, header
from calls.websocket_messages import opening_request
from replay.misses.miss import MissedRequest, nearest_entry
from replay.script import RecordedExchange

if TYPE_CHECKING:
    from replay.recording import Recording

BODY_SHOWN = 1500
"""Characters of a missed request's body in the report."""

_RULES_LISTED = 8
"""Maximum number of differences of a call for which rules are proposed. Nobody ignores more, one by one."""

_MAX_DECODED = 1 << 20
"""Bytes of a compressed body that are decoded to show its beginning."""


def excerpt_request(request: Request) -> MissedRequest:
    """Return the beginning of a request."""
    return MissedRequest(
        method=request.method,
        url=shorten_pointer(request.url),
        content_type=header(request.headers, "content-type"),
        size=request.body.size,
        body=_readable_body(request)[: BODY_SHOWN * 4].decode("utf-8", "replace")[:BODY_SHOWN],
    )


def _readable_body(request: Request) -> bytes:
    coding = header(request.headers, "content-encoding")
    if coding is None:
        return request.body.data
    try:
        return decode_content(request.body.data, coding, _MAX_DECODED)
    except Undecodable:
        return b""


def similar_calls(
    request: Request, recording: "Recording", calls: Sequence[RecordedExchange]
) -> Iterator[dict[str, Json]]:
    """Yield the calls as the report lists them."""
    key = make_key(opening_request(request), recording.profiles)
    for recorded in calls:
        compared = recording.finder.compare(recorded, request)
        rules = [_rule(difference, key) for difference in compared.differences[:_RULES_LISTED]]
        yield {
            **nearest_entry(compared),
            "differences": [_with_words(difference) for difference in compared.differences],
            "asked": f"{recorded.exchange.request.method} {shorten_pointer(recorded.exchange.request.url)}",
            "profile": key.profile,
            "rules": rules,
        }


def _with_words(difference: Difference) -> dict[str, Json]:
    """Return a difference for display. Texts are also compared word by word."""
    document = difference.as_json()
    recorded, now = document["recorded"], document["now"]
    if difference.only_side is None and isinstance(recorded, str) and isinstance(now, str):
        # Imported here, because a replay without misses does not need it.
        from store.diff.word_diff import diff_words

        document["words"] = [[piece.fate, piece.text] for piece in diff_words(recorded, now)]
    return document


def _rule(difference: Difference, key: KeyResult) -> Json:
    # Imported with the first miss, which is explained in a thread: most replays have none.
    from calls.comparison.ignore_rule import propose_ignore_rule

    return {"pointer": difference.readable_pointer, **propose_ignore_rule(difference, key).as_json()}
