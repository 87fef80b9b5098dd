"""The table `[objects]`: object storage for large bodies."""

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from store.objects.target import DEFAULT_THRESHOLD, ObjectTarget
from store.retention.rules import parse_size

SCHEMES: Final = ("s3", "gs", "az", "file")
SMALLEST: Final = 4096


class ObjectSettings(BaseModel):
    """Where large bodies are stored. Credentials are read from the environment, such as AWS_ACCESS_KEY_ID."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    url: str | None = Field(
        None, description="s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY; unset: the database"
    )
    endpoint: str | None = Field(
        None, description="a server that speaks the protocol of S3, e.g. http://127.0.0.1:9000"
    )
    region: str | None = Field(
        default=None, description="the region of the bucket, where the environment does not say it"
    )
    threshold: str = Field(default="256KiB", description="size from which content that is new becomes an object")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES or (not parts.netloc if parts.scheme != "file" else not parts.path.strip("/")):
            raise ValueError(
                f"{url!r} is no place for objects: use s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY"
            )
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(
                "url cannot hold credentials or options: set AWS_ACCESS_KEY_ID and the like in the environment"
            )
        return url.rstrip("/")

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ValueError(f"{endpoint!r} is not the URL of a server such as http://127.0.0.1:9000")
        return endpoint.rstrip("/")

    @field_validator("threshold")
    @classmethod
    def _check_threshold(cls, text: str) -> str:
        if parse_size(text) < SMALLEST:
            raise ValueError(f"threshold = {text!r} is too small: use at least {SMALLEST} bytes, such as 256KiB")
        return text

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
