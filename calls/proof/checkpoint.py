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
            raise InvalidNote("the note is no checkpoint: it must have an origin, a size and a root, a line each")
        try:
            root = base64.b64decode(lines[2], validate=True)
        except binascii.Error:
            root = b""
        if len(root) != 32:
            raise InvalidNote("the root of the checkpoint is not the base64 of 32 bytes")
        return Checkpoint(lines[0], int(lines[1]), root)

    def is_signed_by(self, key: VerifierKey) -> bool:
        """Whether one of the signatures is by this key, and valid."""
        verifier = Ed25519PublicKey.from_public_bytes(key.public_key)
        return any(
            _is_valid(verifier, key, signature[4:], self.text)
            for name, signature in self.signatures
            if name == key.name and signature[:4] == key.key_id
        )


def parse_note(note: str) -> SignedNote:
    """Parse a signed note. Raises `InvalidNote`."""
    text, separator, rest = note.rpartition("\n\n")
    if not separator or not rest.endswith("\n") or len(note) > LONGEST_NOTE:
        raise InvalidNote("the text is not a signed note: it must end with a blank line and lines of signatures")
    if any(character < " " and character != "\n" for character in note):
        raise InvalidNote("the note contains a control character")
    found = [_SIGNATURE_LINE.fullmatch(line) for line in rest[:-1].split("\n")]
    signatures: list[tuple[str, bytes]] = []
    for match in found:
        try:
            signature = base64.b64decode(match[2], validate=True) if match else b""
        except binascii.Error:
            signature = b""
        if match is None or len(signature) < 5:
            raise InvalidNote("a line of signatures of the note is malformed")
        signatures.append((match[1], signature))
    return SignedNote(f"{text}\n", tuple(signatures))


def sign_checkpoint(checkpoint: Checkpoint, keys: Iterable[Ed25519PrivateKey]) -> str:
    """Return the signed note of a checkpoint; each key signs under the origin's name."""
    return sign_text(str(checkpoint), checkpoint.origin, keys)


def sign_text(text: str, name: str, keys: Iterable[Ed25519PrivateKey]) -> str:
    """Return the signed note of a text, which ends with a newline; each key signs under the same name."""
    return f"{text}\n{''.join(_signature_line(name, text, key) for key in keys)}"


def verifier_key(origin: str, key: Ed25519PrivateKey) -> VerifierKey:
    """Return the public half of a key that signs checkpoints of an origin."""
    return VerifierKey(origin, key.public_key().public_bytes_raw())


def _signature_line(name: str, text: str, key: Ed25519PrivateKey) -> str:
    signature = verifier_key(name, key).key_id + key.sign(text.encode())
    return f"\u2014 {name} {base64.b64encode(signature).decode()}\n"


def _is_valid(verifier: Ed25519PublicKey, key: VerifierKey, signature: bytes, text: str) -> bool:
    message = text.encode()
    if key.kind == "witness":
        # The witness signs the time with the note: eight bytes, seconds since the Unix epoch.
        time, signature = int.from_bytes(signature[:8]), signature[8:]
        message = f"cosignature/v1\ntime {time}\n".encode() + message
    try:
        verifier.verify(signature, message)
    except InvalidSignature:
        return False
    return True
