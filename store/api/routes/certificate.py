"""`/ca.pem`: the certificate that clients of the proxy must trust, for machines and containers without its files."""

import asyncio
import re
from pathlib import Path

from fastapi import APIRouter, Response

from store.api.deps import TheDesk
from store.api.problems import Problem

router = APIRouter(tags=["certificate"])

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+?-----END CERTIFICATE-----\r?\n?")

_LARGEST = 16 << 20
"""Bytes of a file with roots; those of today's systems have 300 kB."""


@router.get("/ca.pem", summary="The certificate of the proxy's CA")
async def ca(desk: TheDesk) -> Response:
    """PEM. It is public, so no token is asked for."""
    return await _served(desk.keys, "ca.pem")


@router.get("/ca-bundle.pem", summary="The same and the system's roots, for variables that replace all roots")
async def ca_bundle(desk: TheDesk) -> Response:
    """PEM. It is public, so no token is asked for."""
    return await _served(desk.keys, "ca-bundle.pem")


async def _served(keys: Path | None, name: str) -> Response:
    found = b"" if keys is None else await asyncio.to_thread(_certificates, keys / name)
    if not found:
        detail = "there is no certificate yet: the proxy makes it at its first start, in the data directory it shares with us"
        raise Problem(404, "no_certificate", f"{detail}; ask again when it runs")
    return Response(found, media_type="application/pem-certificate-chain")


def _certificates(path: Path) -> bytes:
    """The certificates in a file, and nothing else that may lie in it."""
    try:
        with path.open("rb") as file:
            return b"".join(_CERTIFICATE.findall(file.read(_LARGEST)))
    except OSError:
        return b""
