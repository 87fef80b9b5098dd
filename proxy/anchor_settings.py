"""The settings `[[witness]]` and `[timestamp]`: who is asked to vouch for checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.export_settings import check_endpoint
from proxy.setting_values import read_path, read_text, setting, with_checks
from store.anchors.targets import AnchorTargets, TimestampTarget, WitnessTarget


def _check_url(value: str) -> str:
    try:
        return check_endpoint(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not a URL such as https://witness.example.com") from error


def _check_key(value: str) -> str:
    # Few have witnesses, and every command reads the settings.
    from calls.proof.checkpoint import InvalidNote, parse_verifier_key

    try:
        is_witness = parse_verifier_key(value).kind == "witness"
    except InvalidNote as error:
        raise ValueError(str(error)) from error
    if not is_witness:
        raise ValueError(
            f"{value[:80]!r} is the key of a log, not of a witness: take the one that its operator publishes"
        )
    return value


def _check_roots(value: Path) -> Path:
    read_root_file(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessSettings:
    """A witness, whose name is in its key."""

    url: str = setting(with_checks(read_text, _check_url))
    key: str = setting(with_checks(read_text, _check_key))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampSettings:
    """A timestamp authority. `roots` is a PEM file with the root certificates that its certificate must lead to."""

    url: str = setting(with_checks(read_text, _check_url))
    roots: Path = setting(with_checks(read_path, _check_roots))


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
            f"{path} is not a PEM file with certificates: export the authority's root certificate as PEM"
        ) from error
    return pem
