"""Ask a timestamp authority when a checkpoint existed (RFC 3161), and check what it answered.

The timestamp is over the SHA-256 of the checkpoint with the signatures of its log, so it shows that the log had signed by then.
"""

from collections.abc import Sequence
from typing import Final

import httpx2
from cryptography import x509
from rfc3161_client import (
    HashAlgorithm,
    PKIStatus,
    TimestampRequestBuilder,
    TimeStampResponse,
    VerificationError,
    VerifierBuilder,
    decode_timestamp_response,
)

from store.anchors.exchange import post
from store.anchors.failure import AnchorFailure
from store.anchors.targets import TimestampTarget

REQUEST_KIND: Final = "application/timestamp-query"
DAMAGED: Final = "it is not a response of RFC 3161 in DER"
LONGEST_REASON: Final = 200
"""Characters of a refusal that are repeated."""

_SECOND: Final = 1_000_000_000


class InvalidTimestamp(ValueError):
    """It is no timestamp of this content by an authority that is trusted; the message says why."""


def read_roots(pem: str) -> list[x509.Certificate]:
    """Read root certificates. Raises ValueError."""
    found = x509.load_pem_x509_certificates(pem.encode())
    if not found:
        raise ValueError("there is no certificate in it")
    return found


async def request_timestamp(client: httpx2.AsyncClient, target: TimestampTarget, content: bytes) -> tuple[bytes, int]:
    """Have an authority state the time; return its response and that time, in nanoseconds since the Unix epoch. Raises `AnchorFailure`."""
    request = TimestampRequestBuilder(content, HashAlgorithm.SHA256).build()
    answer = await post(client, target.url, request.as_bytes(), REQUEST_KIND)
    if answer.status != 200:
        raise AnchorFailure(f"the timestamp authority {target.url} answers {answer.status}; it is asked again")
    try:
        return answer.content, check_timestamp(answer.content, content, read_roots(target.roots), request.nonce)
    except InvalidTimestamp as error:
        raise AnchorFailure(f"the timestamp authority {target.url} gives no timestamp: {error}") from error


def check_timestamp(
    response: bytes, content: bytes, roots: Sequence[x509.Certificate], nonce: int | None = None
) -> int:
    """Return when an authority that one of the roots vouches for says that the content existed, in nanoseconds since the Unix epoch.

    Raises `InvalidTimestamp`.
    """
    verifier = VerifierBuilder(roots=list(roots), nonce=nonce).build()
    parsed = _parse(response)
    try:
        verifier.verify_message(parsed, content)
    except VerificationError as error:
        raise InvalidTimestamp(_reason(error)) from error
    except ValueError as error:
        # The parts of a response are read when they are asked for.
        raise InvalidTimestamp(DAMAGED) from error
    return _time(parsed)


def stated_time(response: bytes) -> int:
    """Return the time in a timestamp, which is not checked. Raises `InvalidTimestamp`."""
    return _time(_parse(response))


def _parse(response: bytes) -> TimeStampResponse:
    try:
        parsed = decode_timestamp_response(response)
        status = PKIStatus(parsed.status)
    except ValueError as error:
        raise InvalidTimestamp(DAMAGED) from error
    if status not in (PKIStatus.GRANTED, PKIStatus.GRANTED_WITH_MODS):
        reason = " ".join(text for text in parsed.status_string if text.isprintable())[:LONGEST_REASON]
        raise InvalidTimestamp(f"the request was refused ({status.name.lower()}{f': {reason}' if reason else ''})")
    return parsed


def _time(parsed: TimeStampResponse) -> int:
    try:
        at = parsed.tst_info.gen_time
    except ValueError as error:
        raise InvalidTimestamp(DAMAGED) from error
    return int(at.replace(microsecond=0).timestamp()) * _SECOND + at.microsecond * 1000


def _reason(error: VerificationError) -> str:
    match str(error):
        case "Mismatch between messages":
            return "it is a timestamp of something else"
        case "Nonce mismatch":
            return "it answers another request"
        case reason if reason.startswith("Error while verifying certificates"):
            return "no trusted root vouches for its signature"
        case reason:
            return reason.rstrip(".")
