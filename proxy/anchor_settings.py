"""The settings `[[witness]]` and `[timestamp]`: who is asked to vouch for checkpoints."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, field_validator

from calls.proof.checkpoint import InvalidNote, parse_verifier_key
from proxy.export_settings import check_endpoint
from store.anchors.targets import AnchorTargets, TimestampTarget, WitnessTarget


class WitnessSettings(BaseModel):
    """A witness, whose name is in its key."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    url: str
    key: str

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        return _check_url(value)

    @field_validator("key")
    @classmethod
    def _check_key(cls, value: str) -> str:
        try:
            is_witness = parse_verifier_key(value).kind == "witness"
        except InvalidNote as error:
            raise ValueError(str(error)) from error
        if not is_witness:
            raise ValueError(
                f"{value[:80]!r} is the key of a log, not of a witness: take the one that its operator publishes"
            )
        return value


class TimestampSettings(BaseModel):
    """A timestamp authority. `roots` is a PEM file with the root certificates that its certificate must lead to."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    url: str
    roots: Path

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        return _check_url(value)

    @field_validator("roots")
    @classmethod
    def _check_roots(cls, value: Path) -> Path:
        read_root_file(value)
        return value


def anchor_targets(witnesses: Sequence[WitnessSettings], timestamp: TimestampSettings | None) -> AnchorTargets:
    """Return who is asked."""
    return AnchorTargets(
        witnesses=tuple(WitnessTarget(url=one.url, key=one.key) for one in witnesses),
        timestamp=None
        if timestamp is None
        else TimestampTarget(url=timestamp.url, roots=read_root_file(timestamp.roots)),
    )


def read_root_file(path: Path) -> str:
    """Read a PEM file of certificates. Raises ValueError."""
    # Most commands need no certificates.
    from store.anchors.timestamp import read_roots

    try:
        pem = path.read_text("ascii")
        read_roots(pem)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; name a PEM file with root certificates") from error
    except ValueError as error:
        raise ValueError(
            f"{path} is no PEM file with certificates: export the authority's root certificate as PEM"
        ) from error
    return pem


def _check_url(value: str) -> str:
    try:
        return check_endpoint(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not a URL such as https://witness.example.com") from error
