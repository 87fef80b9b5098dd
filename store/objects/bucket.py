"""Put, get, list and delete objects. The only module that imports `obstore`, and only when object storage is used."""

import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

from store.database.object_forms import ObjectStorageDown
from store.objects.target import ObjectTarget

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

TIMEOUT: Final = "20s"
CONNECT_TIMEOUT: Final = "3s"
RETRIES: Final = 2
RETRY_TIMEOUT: Final = dt.timedelta(seconds=10)
BACKOFF: Final = (dt.timedelta(milliseconds=100), dt.timedelta(seconds=1))
LIST_PAGE: Final = 1000


class ObjectMissing(Exception):
    """There is no such object."""


class ListedObject(NamedTuple):
    """An object as a list shows it."""

    path: str
    changed_at: int
    """Nanoseconds since the Unix epoch."""


class Bucket:
    """The objects of one URL. Raises `ObjectStorageDown` if it cannot be opened."""

    def __init__(self, target: ObjectTarget) -> None:
        self.name = target.url
        self._store: Any = _open_store(target)

    async def put(self, path: str, data: bytes) -> None:
        """Write an object. Raises `ObjectStorageDown`."""
        try:
            await self._store.put_async(path, data, use_multipart=False)
        except _errors() as error:
            raise self._translate(error) from error

    async def get(self, path: str) -> bytes:
        """Read an object. Raises `ObjectMissing` and `ObjectStorageDown`."""
        try:
            return bytes(await (await self._store.get_async(path)).bytes_async())
        except _errors() as error:
            raise self._translate(error) from error

    async def has(self, path: str) -> bool:
        """Whether there is an object. Raises `ObjectStorageDown`."""
        try:
            await self._store.head_async(path)
        except _errors() as error:
            if isinstance(translated := self._translate(error), ObjectMissing):
                return False
            raise translated from error
        return True

    async def delete(self, path: str) -> None:
        """Delete an object, if it is there. Raises `ObjectStorageDown`."""
        try:
            await self._store.delete_async(path)
        except _errors() as error:
            if not isinstance(translated := self._translate(error), ObjectMissing):
                raise translated from error

    async def list(self, prefix: str) -> AsyncIterator[list[ListedObject]]:
        """Yield the objects below a prefix, some at a time. Raises `ObjectStorageDown`."""
        try:
            async for page in self._store.list(prefix=prefix, chunk_size=LIST_PAGE):
                yield [ListedObject(one["path"], int(one["last_modified"].timestamp() * 1e9)) for one in page]
        except _errors() as error:
            if not isinstance(translated := self._translate(error), ObjectMissing):
                raise translated from error

    def _translate(self, error: Exception) -> ObjectMissing | ObjectStorageDown:
        text = str(error)
        if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
            return ObjectMissing(text.partition("\n")[0])
        return ObjectStorageDown(f"{self.name} {_reason(error, text)}")


def _errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    from obstore.exceptions import BaseError

    return BaseError, OSError, *more


def _reason(error: Exception, text: str) -> str:
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    if "NoSuchBucket" in text:
        return "has no such bucket: create it, or correct [objects] url"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or "InvalidAccessKeyId" in text:
        return "refuses these credentials: check AWS_ACCESS_KEY_ID and the like in the environment of Playhead"
    first = text.partition("\n")[0]
    if "HTTP error" in first or "error sending request" in first:
        return "does not answer: check that it runs and that [objects] endpoint is right"
    if "CredentialsProvider" in text or "credential" in first.lower():
        return "needs credentials: set AWS_ACCESS_KEY_ID and the like in the environment of Playhead"
    return f"cannot be used: {first[:300]}"


def _open_store(target: ObjectTarget) -> Any:
    from obstore.store import LocalStore, from_url

    parts = urlsplit(target.url)
    try:
        if parts.scheme == "file":
            directory = Path(parts.path)
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return LocalStore(directory)
        client: ClientConfig = {"timeout": TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
        config: dict[str, str] = {}
        if target.endpoint is not None:
            config["endpoint"] = target.endpoint
            client["allow_http"] = target.endpoint.startswith("http://")
        if target.region is not None:
            config["region"] = target.region
        retry = {
            "max_retries": RETRIES,
            "retry_timeout": RETRY_TIMEOUT,
            "backoff": {"init_backoff": BACKOFF[0], "max_backoff": BACKOFF[1], "base": 2},
        }
        return from_url(
            target.url, config=cast("Any", config), client_options=client, retry_config=cast("RetryConfig", retry)
        )
    except _errors(ValueError) as error:
        raise ObjectStorageDown(f"{target.url} cannot be used: {str(error).partition(chr(10))[0][:300]}") from error
