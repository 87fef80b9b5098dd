"""Read the shared corpus of real exchanges, if it is present: cassettes of requests and the responses to them."""

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"

HOP_BY_HOP = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "proxy-authenticate",
        "proxy-authorization",
    ]
)
"""RFC 9110, 7.6.1; and content-length, which each hop may make anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExchange:
    """One exchange of the corpus. Header values are latin-1 text; hop-by-hop headers are removed."""

    method: str
    url: str
    request_headers: tuple[tuple[str, str], ...]
    request_body: bytes
    status: int
    response_headers: tuple[tuple[str, str], ...]
    response_body: bytes

    @property
    def host(self) -> str:
        """Return the authority without its port, in lower case."""
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cassette:
    """Exchanges of roughly one run."""

    name: str
    exchanges: tuple[RecordedExchange, ...]


def cassettes() -> list[Cassette]:
    """Return the whole corpus in a fixed order. Skips the test if it is absent."""
    if not CORPUS.is_dir():
        pytest.skip("no corpus beside this checkout (../shared/corpus)")
    return list(read_cassettes())


@cache
def read_cassettes() -> tuple[Cassette, ...]:
    """The same, read once: xdist's workers have it of the process that has collected the tests for them."""
    if not CORPUS.is_dir():
        return ()
    found = [cassette for file in sorted(CORPUS.glob("*.jsonl.gz")) for cassette in _read(file)]
    return tuple(cassette for cassette in found if cassette.exchanges)


def _read(file: Path) -> Iterator[Cassette]:
    with gzip.open(file) as lines:
        for line in lines:
            found = json.loads(line)
            name = f"{file.name.removesuffix('.jsonl.gz')}/{found['file']}"
            yield Cassette(name=name, exchanges=tuple(_exchange(one) for one in found["interactions"]))


def _exchange(one: dict[str, Any]) -> RecordedExchange:
    asked, got = one["request"], one["response"]
    return RecordedExchange(
        method=asked["method"].upper(),
        url=asked["url"],
        request_headers=_headers(asked["headers"], drop="host"),
        request_body=base64.b64decode(asked["body"] or ""),
        status=got["status"],
        response_headers=_headers(got["headers"]),
        response_body=base64.b64decode(got["body"] or ""),
    )


def _headers(pairs: list[list[str]], drop: str = "") -> tuple[tuple[str, str], ...]:
    kept = [(name, value) for name, value in pairs if name.lower() not in HOP_BY_HOP and name.lower() != drop]
    return tuple((name, value.strip()) for name, value in kept if value.isascii() and value.isprintable())
