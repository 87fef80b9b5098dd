"""The contents of a foreign file: interactions, and entries that cannot be imported."""

from typing import Literal

import msgspec

from calls.model import Request, Response

type Format = Literal["bundle", "vcr", "har", "jsonl", "httprr"]

FORMATS: tuple[Format, ...] = ("bundle", "vcr", "har", "jsonl", "httprr")

UNTIMED = "no durations: exchanges end when they begin"
UNCHUNKED = "no chunk boundaries: each body is one chunk"
UNVERSIONED = "no HTTP version"
RESERIALIZED = "bodies were kept parsed: they are serialized again, and their bytes may differ"
UNPACKED = "bodies were kept decompressed: their content-encoding is removed"
REPACKED = "bodies were kept compressed without a content-encoding: it is added"
REBUILT = "requests were rebuilt from the arguments of a function"


class Interaction(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its response as the file has them, before redaction."""

    place: str
    """A description of its place in the file."""

    request: Request
    response: Response
    started_at: int | None = None
    """Nanoseconds since the epoch."""

    first_byte_at: int | None = None
    ended_at: int | None = None
    """Nanoseconds since it started."""

    notes: tuple[str, ...] = ()
    """What differs from the wire: some of the notes above."""


class SkippedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the file that cannot be imported."""

    place: str
    reason: str


type Found = Interaction | SkippedEntry


class BrokenInteraction(ValueError):
    """An interaction cannot be read; the message says why."""


class NotReadable(ValueError):
    """The file as a whole cannot be read; the message says why and what to do."""
