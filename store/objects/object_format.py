"""What an object has: a magic number, a nonce, and a form of `blobs` that decodes by itself, in AES-256-GCM.

The address is authenticated with it, so that no object can stand in for another. When it is read, the address is computed again from
the bytes.
"""

import hmac
import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from store.database.blobs import CorruptData, pack, unpack
from store.objects.object_keys import ObjectKey

MAGIC: Final = b"PHO1"
_NONCE: Final = 12


class DamagedObject(Exception):
    """What an object has is not what was written."""


def seal_object(key: ObjectKey, address: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return the object of some bytes, and the form in it."""
    nonce, form = os.urandom(_NONCE), pack(data)
    return MAGIC + nonce + AESGCM(key.encryption).encrypt(nonce, form, MAGIC + address), form


def open_object(key: ObjectKey, address: bytes, content: bytes) -> bytes:
    """Return the form that an object has. Raises `DamagedObject`."""
    if not content.startswith(MAGIC):
        raise DamagedObject("it does not begin as an object of Playhead")
    nonce = content[len(MAGIC) : len(MAGIC) + _NONCE]
    try:
        form = AESGCM(key.encryption).decrypt(nonce, content[len(MAGIC) + _NONCE :], MAGIC + address)
        data = unpack(form)
    except (InvalidTag, ValueError) as error:
        raise DamagedObject("it was altered, cut, or encrypted with another key") from error
    except CorruptData as error:
        raise DamagedObject(str(error)) from error
    if not hmac.compare_digest(key.address_of(data), address):
        raise DamagedObject("its bytes are not those that its address stands for")
    return form
