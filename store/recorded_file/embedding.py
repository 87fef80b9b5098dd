"""Choose the documents that a page in one file holds: all that are small, until the file is as large as a bug tracker takes."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from store.recorded_file.documents import FileDocuments, FileProblem, StoredBody

LARGEST_DOCUMENT: Final = 512 << 10
"""Bytes of one document; a larger one is left out."""

LARGEST_BODY: Final = 64 << 10
"""Bytes of one body as it crossed the wire. The call has its content as well."""

LARGEST_FILE: Final = 20 << 20
"""Bytes of all documents together."""

_encoder = msgspec.json.Encoder(decimal_format="number")


@dataclass(slots=True)
class EmbeddedDocuments:
    """The documents by their addresses, as JSON, and what was left out."""

    documents: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    """By address: the size of a document that is too large."""

    size: int = 0


def embed_documents(source: FileDocuments) -> EmbeddedDocuments:
    """Return the documents of a file, the run's first."""
    embedded = EmbeddedDocuments()
    for path, parameters in source.addresses():
        address = f"{path}?{urlencode(parameters)}" if parameters else path
        if address in embedded.documents or address in embedded.left_out:
            continue
        try:
            # The page of a file has all of these: it cannot ask for the next part.
            is_list = path.endswith(("/conversation", "/timeline", "/effects"))
            request_parameters = {**parameters, "limit": str(1 << 20)} if is_list else parameters
            value, limit = _embedded_form(source.answer(path, request_parameters))
        except FileProblem as problem:
            value, limit = {"problem": problem.members}, LARGEST_DOCUMENT
        text = encode_document(value)
        if len(text) > limit or embedded.size + len(text) > LARGEST_FILE:
            embedded.left_out[address] = len(text)
        else:
            embedded.documents[address] = text.decode("utf-8", "replace")
            embedded.size += len(text)
    return embedded


def encode_document(value: Any) -> bytes:
    """Encode a document as the REST API does."""
    return _encoder.encode(value)


def _embedded_form(value: Any) -> tuple[Mapping[str, Any], int]:
    """Return a document as it is embedded, and how large it may be."""
    if isinstance(value, StoredBody):
        return {"base64": b64encode(value.data).decode()}, LARGEST_BODY * 4 // 3
    return value, LARGEST_DOCUMENT if "items" not in value and "steps" not in value else LARGEST_FILE
