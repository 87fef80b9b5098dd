"""Search for secrets in everything that was written or printed, decompressed as far as possible."""

import base64
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg

from store.database.blobs import CorruptData, unpack

COMPRESSED = re.compile(rb"\x1f\x8b\x08|\x78[\x01\x5e\x9c\xda]")


def decompressed_parts(data: bytes) -> Iterator[bytes]:
    """Yield the bytes, and what is compressed in them."""
    yield data
    for found in COMPRESSED.finditer(data):
        inflate = zlib.decompressobj(47)
        try:
            inner = inflate.decompress(data[found.start() :], 1 << 24)
        except zlib.error:
            continue
        if inner:
            yield inner


def find_leaks(secrets: Mapping[str, str], places: Iterable[tuple[str, bytes]]) -> list[str]:
    """Return where each secret was found, in clear or in base64."""
    wanted = {
        name: (secret.encode(), base64.b64encode(secret.encode()).rstrip(b"=")) for name, secret in secrets.items()
    }
    # What has not even the letters with which all begin need not be searched for each.
    beginnings = [os.path.commonprefix(spellings) for spellings in zip(*wanted.values(), strict=True)]  # noqa: RUF071
    return [
        f"{name} in {place}"
        for place, data in places
        for layer in decompressed_parts(data)
        if any(beginning in layer for beginning in beginnings)
        for name, spellings in wanted.items()
        if any(spelling in layer for spelling in spellings)
    ]


def files(*roots: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file below a directory."""
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(root)), path.read_bytes()


async def tables(url: str) -> list[tuple[str, bytes]]:
    """Return every value of every column of every table, decompressed."""
    connection = await asyncpg.connect(url)
    try:
        names = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        found = []
        for (name,) in names:
            for row in await connection.fetch(f'SELECT * FROM "{name}"'):
                found += [(f"table {name}, column {column}", _bytes(value)) for column, value in row.items()]
    finally:
        await connection.close()
    return found


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        return str(value).encode()
    try:
        return value + b" " + unpack(value)
    except CorruptData:
        return value
