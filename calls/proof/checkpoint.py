"""Signed checkpoints: the size and root of a tree as a text that its owner and witnesses sign.

The formats are those of C2SP: signed-note (https://c2sp.org/signed-note), tlog-checkpoint (https://c2sp.org/tlog-checkpoint) and
tlog-cosignature (https://c2sp.org/tlog-cosignature), with Ed25519 (RFC 8032).
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_ED25519: Final = 1
_COSIGNATURE: Final = 4
_SIGNATURE_LINE: Final = re.compile(r"\u2014 ([^ +\n]+) ([A-Za-z0-9+/=]+)")
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,18}")
LONGEST_NOTE: Final = 64 << 10
"""Bytes of a note at most; longer ones are refused."""


class InvalidNote(ValueError):
    """The text is not a checkpoint or a verifier key, or none of its signatures is by the key."""


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A public key with the name of its owner."""

    name: str
    public_key: bytes
    """32 bytes."""

    kind: Literal["log", "witness"] = "log"

    @property
    def _algorithm(self) -> bytes:
        return bytes([_ED25519 if self.kind == "log" else _COSIGNATURE])

    @property
    def key_id(self) -> bytes:
        """The four bytes that precede this key's signatures."""
        return hashlib.sha256(self.name.encode() + b"\n" + self._algorithm + self.public_key).digest()[:4]

    def __str__(self) -> str:
        """The key in the form `NAME+ID+KEY`."""
        return f"{self.name}+{self.key_id.hex()}+{base64.b64encode(self._algorithm + self.public_key).decode()}"


def parse_verifier_key(text: str) -> VerifierKey:
    """Parse a key in the form `NAME+ID+KEY`. Raises `InvalidNote`."""
    name, _, rest = text.strip().partition("+")
    key_id, _, encoded = rest.partition("+")
    try:
        data = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        data = b""
    kinds: dict[int, Literal["log", "witness"]] = {_ED25519: "log", _COSIGNATURE: "witness"}
    if not name or len(data) != 33 or data[0] not in kinds:
        raise InvalidNote(f"{text[:80]!r} is not a verifier key of the form NAME+ID+KEY with an Ed25519 key")
    key = VerifierKey(name, data[1:], kinds[data[0]])
    if key.key_id.hex() != key_id:
        raise InvalidNote(f"the id {key_id[:20]!r} of the verifier key {name!r} is not that of its key")
    return key


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The size and root of the tree of a log."""

    origin: str
    size: int
    root: bytes

    def __str__(self) -> str:
        """The text that is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


@dataclass(frozen=True, slots=True)
class SignedNote:
    """A text and its signatures: pairs of a name and the decoded bytes, the first four of which name the key."""

    text: str
    signatures: tuple[tuple[str, bytes], ...]

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint in the text. Raises `InvalidNote`."""
        lines = self.text.split("\n")
        if len(lines) < 4 or not lines[0] or not _SIZE.fullmatch(lines[1]):
            raise InvalidNote("the note is not a checkpoint: it must have an origin, a size and a root, a line each")
        try:
            root = base64.b64decode(lines[2], validate=True)
        except binascii.Error:
            root = b""
        if len(root) != 32:
            raise InvalidNote("the root of the checkpoint is not the base64 of 32 bytes")
        return Checkpoint(lines[0], int(lines[1]), root)

    def is_signed_by(self, key: VerifierKey) -> bool:
        """Whether one of the signatures is by this key, and valid."""
        return any(_is_valid(key, signature, self.text) for signature in self._signatures_of(key))

    def cosigned_at(self, witness: VerifierKey) -> int | None:
        """When this witness says that it has signed, in seconds since the Unix epoch; None if it has not, or its signature is invalid."""
        valid = (one for one in self._signatures_of(witness) if _is_valid(witness, one, self.text))
        return min((cosignature_time(one) for one in valid), default=None)

    def _signatures_of(self, key: VerifierKey) -> list[bytes]:
        return [one[4:] for name, one in self.signatures if name == key.name and one[:4] == key.key_id]

    @property
    def own_note(self) -> str:
        """The note with the signatures of its origin alone, as it was before witnesses added theirs."""
        origin = self.text.partition("\n")[0]
        return f"{self.text}\n{''.join(signature_line(*one) for one in self.signatures if one[0] == origin)}"

    @property
    def cosigners(self) -> list[tuple[str, int]]:
        """The names of others that say to have signed, and when: neither is checked."""
        origin = self.text.partition("\n")[0]
        # A cosignature of Ed25519 has four bytes of its key, eight of its time, and 64 of the signature.
        return [(name, cosignature_time(one[4:])) for name, one in self.signatures if name != origin and len(one) == 76]


def cosignature_time(signature: bytes) -> int:
    """When a witness says to have signed, in seconds since the Unix epoch."""
    return int.from_bytes(signature[:8])


def parse_note(note: str) -> SignedNote:
    """Parse a signed note. Raises `InvalidNote`."""
    text, separator, rest = note.rpartition("\n\n")
    if not separator or not rest.endswith("\n") or len(note) > LONGEST_NOTE:
        raise InvalidNote("the text is not a signed note: it must end with a blank line and lines of signatures")
    if any(character < " " and character != "\n" for character in note):
        raise InvalidNote("the note contains a control character")
    return SignedNote(f"{text}\n", parse_signatures(rest))


def parse_signatures(lines: str) -> tuple[tuple[str, bytes], ...]:
    """Parse the lines of signatures of a note, each of which ends with a newline. Raises `InvalidNote`."""
    signatures: list[tuple[str, bytes]] = []
    for match in [_SIGNATURE_LINE.fullmatch(line) for line in lines[:-1].split("\n")]:
        try:
            signature = base64.b64decode(match[2], validate=True) if match else b""
        except binascii.Error:
            signature = b""
        if match is None or len(signature) < 5:
            raise InvalidNote("a line of signatures of the note is malformed")
        signatures.append((match[1], signature))
    return tuple(signatures)


def sign_checkpoint(checkpoint: Checkpoint, keys: Iterable[Ed25519PrivateKey]) -> str:
    """Return the signed note of a checkpoint; each key signs under the origin's name."""
    return sign_text(str(checkpoint), checkpoint.origin, keys)


def sign_text(text: str, name: str, keys: Iterable[Ed25519PrivateKey]) -> str:
    """Return the signed note of a text, which ends with a newline; each key signs under the same name."""
    return f"{text}\n{''.join(_sign_line(name, text, key) for key in keys)}"


def verifier_key(origin: str, key: Ed25519PrivateKey) -> VerifierKey:
    """Return the public half of a key that signs checkpoints of an origin."""
    return VerifierKey(origin, key.public_key().public_bytes_raw())


def signature_line(name: str, signature: bytes) -> str:
    """Return a line of a note: a signature that begins with the four bytes of its key."""
    return f"\u2014 {name} {base64.b64encode(signature).decode()}\n"


def cosign(text: str, name: str, key: Ed25519PrivateKey, time: int) -> str:
    """Return the line by which a witness signs the text of a note at a time, in seconds since the Unix epoch."""
    own = VerifierKey(name, key.public_key().public_bytes_raw(), "witness")
    return signature_line(name, own.key_id + time.to_bytes(8) + key.sign(_cosigned_message(text, time)))


def _sign_line(name: str, text: str, key: Ed25519PrivateKey) -> str:
    return signature_line(name, verifier_key(name, key).key_id + key.sign(text.encode()))


def _cosigned_message(text: str, time: int) -> bytes:
    return f"cosignature/v1\ntime {time}\n{text}".encode()


def _is_valid(key: VerifierKey, signature: bytes, text: str) -> bool:
    message = text.encode()
    if key.kind == "witness":
        # The witness signs the time with the note: eight bytes, seconds since the Unix epoch.
        message, signature = _cosigned_message(text, cosignature_time(signature)), signature[8:]
    try:
        Ed25519PublicKey.from_public_bytes(key.public_key).verify(signature, message)
    except InvalidSignature:
        return False
    return True
