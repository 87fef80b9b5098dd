"""What a foreign file holds: interactions, and what could not be read as one."""

from dataclasses import dataclass
from typing import Literal

from calls.model import Request, Response

type Format = Literal["bundle", "vcr", "har", "jsonl", "httprr"]

FORMATS: tuple[Format, ...] = ("bundle", "vcr", "har", "jsonl", "httprr")

UNTIMED = "no times: those of the recording stand for none"
UNCHUNKED = "no chunk boundaries: each body is one chunk"
UNVERSIONED = "no HTTP version"
RESERIALIZED = "bodies were kept parsed, and are spelled anew"
UNPACKED = "bodies were kept decompressed: their content-encoding is left out"
REPACKED = "bodies were kept compressed without a content-encoding: it is put back"
REBUILT = "requests were rebuilt from the arguments of a function"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """One request and its response, as the file tells them: before redaction, and without what the file does not hold."""

    place: str
    """Where in the file it stands, in words."""

    request: Request
    response: Response
    started_at: int | None = None
    """Nanoseconds since the epoch."""

    first_byte_at: int | None = None
    ended_at: int | None = None
    """Nanoseconds since it started."""

    notes: tuple[str, ...] = ()
    """What differs from the wire: some of the sentences above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedEntry:
    """Something in the file that cannot be imported."""

    place: str
    reason: str


type Found = Interaction | SkippedEntry


class Broken(ValueError):
    """One interaction cannot be read; the message says why."""


class NotReadable(ValueError):
    """The file as a whole cannot be read; the message says why and what to do."""
