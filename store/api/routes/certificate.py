"""`/ca.pem`: the certificate that clients of the proxy must trust, for machines and containers that cannot read its files."""

import asyncio
import re
from pathlib import Path

from fastapi import APIRouter, Response

from store.api.deps import TheDeps
from store.api.problems import Problem

router = APIRouter(tags=["certificate"])

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+?-----END CERTIFICATE-----\r?\n?")

_LARGEST_FILE = 16 << 20
"""Bytes that are read of a file with roots; those of today's systems have 300 kB."""


@router.get("/ca.pem", summary="The certificate of the proxy's CA")
async def ca(deps: TheDeps) -> Response:
    """PEM. It is public, so no token is required."""
    return await _certificate_response(deps.key_directory, "ca.pem")


@router.get(
    "/ca-bundle.pem", summary="The CA's certificate and the system's roots, for variables that replace all roots"
)
async def ca_bundle(deps: TheDeps) -> Response:
    """PEM. It is public, so no token is required."""
    return await _certificate_response(deps.key_directory, "ca-bundle.pem")


async def _certificate_response(keys: Path | None, name: str) -> Response:
    found = b"" if keys is None else await asyncio.to_thread(_read_certificates, keys / name)
    if not found:
        detail = (
            "there is no certificate yet: the proxy creates it at its first start, in the data directory that it shares"
        )
        raise Problem(404, "no_certificate", f"{detail} with the store server; try again when the proxy runs")
    return Response(found, media_type="application/pem-certificate-chain")


def _read_certificates(path: Path) -> bytes:
    """Return the certificates in a file, without anything else that it may hold, such as a private key."""
    try:
        with path.open("rb") as file:
            return b"".join(_CERTIFICATE.findall(file.read(_LARGEST_FILE)))
    except OSError:
        return b""
