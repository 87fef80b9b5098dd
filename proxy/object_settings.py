"""The table `[objects]`: object storage for large bodies."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from proxy.setting_values import Reader, optional, read_text, setting, with_checks
from store.objects.target import DEFAULT_THRESHOLD, ObjectTarget
from store.retention.rules import parse_size

SCHEMES: Final = ("s3", "gs", "az", "file")
SMALLEST: Final = 4096


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or (not parts.netloc if parts.scheme != "file" else not parts.path.strip("/")):
        raise ValueError(
            f"{url!r} is not a place for objects: use s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY"
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            "url cannot hold credentials or options: set AWS_ACCESS_KEY_ID and the like in the environment"
        )
    return url.rstrip("/")


def _check_endpoint(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError(f"{endpoint!r} is not the URL of a server such as http://127.0.0.1:9000")
    return endpoint.rstrip("/")


def _check_threshold(text: str) -> str:
    if parse_size(text) < SMALLEST:
        raise ValueError(f"threshold = {text!r} is too small: use at least {SMALLEST} bytes, such as 256KiB")
    return text


_read_url: Final[Reader[str]] = with_checks(read_text, _check_url)
_read_endpoint: Final[Reader[str]] = with_checks(read_text, _check_endpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """Where large bodies are stored. Credentials are read from the environment, such as AWS_ACCESS_KEY_ID."""

    url: str | None = setting(
        optional(_read_url),
        None,
        description="s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY; unset: the database",
    )
    endpoint: str | None = setting(
        optional(_read_endpoint),
        None,
        description="a server that speaks the protocol of S3, e.g. http://127.0.0.1:9000",
    )
    region: str | None = setting(
        optional(read_text), None, description="the region of the bucket, where the environment does not say it"
    )
    threshold: str = setting(
        with_checks(read_text, _check_threshold),
        "256KiB",
        description="size from which content that is new becomes an object",
    )

    def target(self, keys: Path) -> ObjectTarget | None:
        """Return the target with the keys of this directory; None without object storage."""
        if self.url is None:
            return None
        return ObjectTarget(
            url=self.url,
            endpoint=self.endpoint,
            region=self.region,
            threshold=parse_size(self.threshold) if self.threshold else DEFAULT_THRESHOLD,
            keys=str(keys / "objects"),
        )
