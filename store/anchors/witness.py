"""Ask a witness to cosign a checkpoint (https://c2sp.org/tlog-witness).

A witness keeps the size and root of the tree of each log that it has signed last, and signs only what continues that tree. So it cannot
be shown a history from which something was taken back, nor two histories.
"""

import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import httpx2

from calls.proof.checkpoint import InvalidNote, SignedNote, VerifierKey, parse_note, parse_signatures, signature_line
from store.anchors.exchange import Answer, post
from store.anchors.failure import AnchorContradiction, AnchorFailure
from store.anchors.targets import WitnessTarget

SIZE_KIND: Final = "text/x.tlog.size"
TRIES: Final = 3
"""Requests in a row: a witness says which size it knows, and may have signed another checkpoint meanwhile."""

type LoadPath = Callable[[int], Awaitable[Sequence[bytes]]]
"""Returns the consistency proof from a smaller size to that of the checkpoint."""


class Cosignature(NamedTuple):
    """The line of a witness, and when it says to have signed, in seconds since the Unix epoch."""

    line: str
    at: int


async def request_cosignature(
    client: httpx2.AsyncClient, target: WitnessTarget, note: str, signed_size: int, load_path: LoadPath
) -> Cosignature:
    """Have a witness sign a checkpoint. `signed_size` is the size that it has probably signed last.

    Raises `AnchorFailure`, or `AnchorContradiction` where it has signed another history.
    """
    key, parsed = target.verifier_key, parse_note(note)
    checkpoint = parsed.checkpoint
    for _ in range(TRIES):
        path = await load_path(signed_size) if 0 < signed_size < checkpoint.size else []
        answer = await post(client, _url(target), format_request(signed_size, path, note), "text/plain; charset=utf-8")
        if answer.status != 409:
            return _read_cosignature(answer, key, parsed)
        stated = _read_size(answer, key)
        if stated > checkpoint.size:
            raise AnchorContradiction(
                f"the witness {key.name} has signed {stated} leaves of {checkpoint.origin}, and there are {checkpoint.size} here:"
                " the database was set back to an earlier state, or somebody else signs with this key"
            )
        if stated == signed_size:
            raise AnchorContradiction(_other_history(key, parsed))
        signed_size = stated
    raise AnchorFailure(f"the witness {key.name} names another size each time it is asked; check who else asks it")


def format_request(size: int, path: Sequence[bytes], note: str) -> bytes:
    """Return the body of a request: the size that the witness knows, the proof that the tree continues, and the checkpoint."""
    lines = "".join(f"{base64.b64encode(each).decode()}\n" for each in path)
    return f"old {size}\n{lines}\n{note}".encode()


def _url(target: WitnessTarget) -> str:
    return f"{target.url.rstrip('/')}/add-checkpoint"


def _read_size(answer: Answer, key: VerifierKey) -> int:
    text = answer.content.decode("ascii", "replace").removesuffix("\n")
    if answer.kind != SIZE_KIND or not text.isascii() or not text.isdigit() or len(text) > 18:
        raise AnchorFailure(
            f"the witness {key.name} answers 409 without the size that it knows, so nothing can be shown to it"
        )
    return int(text)


def _read_cosignature(answer: Answer, key: VerifierKey, note: SignedNote) -> Cosignature:
    match answer.status:
        case 200:
            pass
        case 403:
            raise AnchorFailure(
                f"the witness {key.name} does not trust the key of this log (403): give its operator what `playhead signing-key` prints"
            )
        case 404:
            raise AnchorFailure(
                f"the witness {key.name} does not know the log {note.checkpoint.origin} (404): give its operator what"
                " `playhead signing-key` prints, or check its URL"
            )
        case 422:
            raise AnchorContradiction(_other_history(key, note))
        case status:
            raise AnchorFailure(f"the witness {key.name} answers {status}; it is asked again")
    try:
        signatures = parse_signatures(_lines(answer.content))
    except (InvalidNote, UnicodeDecodeError):
        raise AnchorFailure(
            f"the witness {key.name} answers 200 with something that is not a line of a signature; check its URL"
        ) from None
    for name, signature in signatures:
        line = signature_line(name, signature)
        if (at := parse_note(note.own_note + line).cosigned_at(key)) is not None:
            return Cosignature(line, at)
    raise AnchorFailure(
        f"the witness {key.name} has signed with another key than the one in the settings, or something else than was sent; correct its key"
    )


def _lines(content: bytes) -> str:
    text = content.decode()
    if not text.endswith("\n"):
        raise InvalidNote("it does not end with a newline")
    return text


def _other_history(key: VerifierKey, note: SignedNote) -> str:
    return (
        f"the witness {key.name} has signed a tree of {note.checkpoint.origin} that this one does not continue:"
        " its history was changed after it was signed, or two histories were signed with one key"
    )
