"""Where objects are, and from which size bytes become one."""

from typing import Final

import msgspec

DEFAULT_THRESHOLD: Final = 256 << 10


class ObjectTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Object storage. Credentials come from the environment, as its own tools read them."""

    url: str
    """`s3://BUCKET/PREFIX`, `gs://…`, `az://…` or `file:///DIRECTORY`."""

    endpoint: str | None = None
    """The URL of a server that speaks the protocol of S3, if it is not Amazon's."""

    region: str | None = None
    threshold: int = DEFAULT_THRESHOLD
    """Bytes from which content that is stored for the first time becomes an object."""

    keys: str = ""
    """The directory of the keys of the projects."""
