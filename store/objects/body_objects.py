"""Write objects before the rows that name them, load and delete them.

When object storage fails, what was to be written is stored in the database instead, and for a while nothing else is tried: recording
waits for nobody. Nothing here runs on the event loop for long: compressing and encrypting take threads, and `obstore` has its own.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from store.database.blobs import BodyUnavailable, unavailable_form
from store.database.connection import Database
from store.database.object_forms import ObjectRef, ObjectStorageDown, WrittenObject
from store.objects.bucket import Bucket, ObjectMissing
from store.objects.collection import collect_objects, delete_unused, require_owner
from store.objects.object_format import DamagedObject, open_object, seal_object
from store.objects.object_keys import KeyUnusable, ObjectKey, ObjectKeys, object_path
from store.objects.registry import reserve_objects
from store.objects.target import ObjectTarget

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
"""Objects that are written or loaded at the same time."""

WRITE_TIMEOUT: Final = 15.0
"""Seconds that the objects of one batch may take; what is not written by then is stored in the database."""

LOAD_TIMEOUT: Final = 20.0
RETRY_INTERVAL: Final = 30.0
"""Seconds after a failure in which nothing is written to object storage."""

CACHE_SIZE: Final = 16 << 20
"""Bytes of the newest objects that are held until they are read once: what was just written is read again for the index of words."""


class BodyObjects:
    """The object storage of one target (`store.database.object_forms.ObjectStorage`)."""

    def __init__(
        self,
        database: Database,
        target: ObjectTarget,
        *,
        now: Callable[[], int] = time.time_ns,
        pause: float = RETRY_INTERVAL,
    ) -> None:
        self._database = database
        self._target = target
        self.keys = ObjectKeys(Path(target.keys))
        self._now = now
        self._pause = pause
        self._opened: Bucket | None = None
        self._retry_at = 0.0
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._cache: OrderedDict[ObjectRef, bytes] = OrderedDict()
        self._cached = 0
        self._owned: set[bytes] = set()
        self._trouble: str | None = None
        self.written = 0
        """Objects that were written."""

        self.written_bytes = 0
        self.failures = 0
        """Contents that were stored in the database because object storage failed."""

    @property
    def threshold(self) -> int | None:
        """Bytes from which content becomes an object."""
        return self._target.threshold

    @property
    def trouble(self) -> str | None:
        """Why nothing is written at present."""
        return self._trouble

    @property
    def _is_paused(self) -> bool:
        return time.monotonic() < self._retry_at

    @property
    def bucket(self) -> Bucket:
        """The bucket, opened when it is first used. Raises `ObjectStorageDown`."""
        if self._opened is None:
            self._opened = Bucket(self._target)
        return self._opened

    async def check(self) -> str | None:
        """Write, read and delete an object; return why nothing is written at present, or None.

        A success within the pause after a failure changes nothing: what is written then goes into the database, and says so.
        """
        path = f"check/{self._now()}"
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                bucket = await asyncio.to_thread(lambda: self.bucket)
                await bucket.put(path, b"playhead")
                try:
                    if await bucket.get(path) != b"playhead":
                        raise ObjectStorageDown(f"{bucket.name} returns other bytes than were written")
                finally:
                    await bucket.delete(path)
        except ObjectMissing:
            self._note_failure(f"{self._target.url} does not have what was just written to it")
        except ObjectStorageDown as error:
            self._note_failure(str(error))
        except TimeoutError:
            self._note_failure(f"{self._target.url} has not answered for {WRITE_TIMEOUT:g} s")
        else:
            if not self._is_paused:
                self._note_success()
        return self.trouble

    async def write(self, project: str, contents: Mapping[bytes, bytes]) -> dict[bytes, WrittenObject]:
        """Write an object of each content; return those that were written, by the same names."""
        if not contents or self._is_paused:
            self.failures += len(contents)
            return {}
        try:
            key = await asyncio.to_thread(self.keys.key_for_writing, project)
        except KeyUnusable as error:
            self._note_failure(str(error))
            self.failures += len(contents)
            return {}
        refs = await asyncio.to_thread(
            lambda: {name: ObjectRef(key.id, key.address_of(data), len(data)) for name, data in contents.items()}
        )
        try:
            await self._require_owner(key.id)
        except ObjectStorageDown as error:
            self._note_failure(str(error))
            self.failures += len(contents)
            return {}
        reserved = await reserve_objects(self._database, project, list(refs.values()), self._now())
        written: dict[bytes, WrittenObject] = {}

        async def write_one(name: bytes) -> None:
            ref = refs[name]
            await self._write_object(key, ref, contents[name], is_new=reserved[ref.address].is_new)
            written[name] = WrittenObject(ref, reserved[ref.address].generation)

        try:
            async with asyncio.timeout(WRITE_TIMEOUT), asyncio.TaskGroup() as group:
                for name in contents:
                    group.create_task(write_one(name))
        except* ObjectStorageDown as errors:
            self._note_failure(str(errors.exceptions[0]))
        except* TimeoutError:
            self._note_failure(f"{self._target.url} has not answered for {WRITE_TIMEOUT:g} s")
        else:
            self._note_success()
        self.failures += len(contents) - len(written)
        return written

    def take_counts(self) -> dict[str, int]:
        """Return the counts and begin again at zero."""
        counts = self.counts()
        self.written = self.written_bytes = self.failures = 0
        return counts

    def add_counts(self, counts: Mapping[str, int], trouble: str | None) -> None:
        """Add what another process has counted, and note why it writes nothing."""
        self.written += counts.get("objects_written_total", 0)
        self.written_bytes += counts.get("objects_written_bytes_total", 0)
        self.failures += counts.get("objects_failed_total", 0)
        if trouble is not None:
            self._note_failure(trouble)
        elif counts.get("objects_written_total"):
            self._note_success()

    async def _require_owner(self, key_id: bytes) -> Bucket:
        """Return the bucket if the objects of a key in it belong to this database. Raises `ObjectStorageDown`."""
        bucket = await asyncio.to_thread(lambda: self.bucket)
        if key_id not in self._owned:
            async with self._database.connection() as connection:
                await require_owner(connection, bucket, key_id)
            self._owned.add(key_id)
        return bucket

    async def _write_object(self, key: ObjectKey, ref: ObjectRef, data: bytes, *, is_new: bool) -> None:
        async with self._slots:
            bucket = await asyncio.to_thread(lambda: self.bucket)
            path = key.path_of(ref.address)
            # It is written again if it is lost: the row alone does not say that there is an object.
            if not is_new and await bucket.has(path):
                return
            content, form = await asyncio.to_thread(seal_object, key, ref.address, data)
            await bucket.put(path, content)
            self._remember(ref, form)
            self.written += 1
            self.written_bytes += len(data)

    async def load(self, project: str, refs: Collection[ObjectRef]) -> dict[ObjectRef, bytes]:
        """Return the form that each object has, or the form of its absence."""
        found = {ref: form for ref in refs if (form := self._take_from_cache(ref)) is not None}
        missing = [ref for ref in refs if ref not in found]
        loaded = await asyncio.gather(*(self._load_one(project, ref) for ref in missing))
        return found | dict(zip(missing, loaded, strict=True))

    async def find_absence(self, project: str, refs: Collection[ObjectRef]) -> BodyUnavailable | None:
        """Return why one of these objects cannot be loaded, as far as that is known without loading them; None if they can."""

        async def find_one(ref: ObjectRef) -> BodyUnavailable | None:
            path = object_path(ref.key_id, ref.address)
            try:
                async with self._slots, asyncio.timeout(LOAD_TIMEOUT):
                    bucket = await asyncio.to_thread(lambda: self.bucket)
                    is_there = await bucket.has(path)
            except ObjectStorageDown as error:
                return BodyUnavailable("unreachable", f"the object {path} cannot be loaded: {error}")
            except TimeoutError:
                return BodyUnavailable("unreachable", f"{self._target.url} has not answered for {LOAD_TIMEOUT:g} s")
            reason = f"the object {path} is missing in {self._target.url}"
            return None if is_there else BodyUnavailable("missing", reason)

        if refs and self.keys.id_of(project) is None:
            return BodyUnavailable(
                "erased", f"the key of project {project} is gone, and with it every object of the project"
            )
        return next((why for why in await asyncio.gather(*map(find_one, refs)) if why is not None), None)

    async def _load_one(self, project: str, ref: ObjectRef) -> bytes:
        path = object_path(ref.key_id, ref.address)
        name = f"the object {path}"
        try:
            key = await asyncio.to_thread(self.keys.key, project)
            if key.id != ref.key_id:
                raise KeyUnusable(
                    f"the key {ref.key_id.hex()} of project {project} is not there: its objects were erased with it, or another store server wrote them"
                )
            async with self._slots, asyncio.timeout(LOAD_TIMEOUT):
                bucket = await asyncio.to_thread(lambda: self.bucket)
                form = await asyncio.to_thread(open_object, key, ref.address, await bucket.get(path))
        except KeyUnusable as error:
            return unavailable_form("erased", str(error))
        except ObjectMissing:
            return unavailable_form("missing", f"{name} is missing in {self._target.url}")
        except DamagedObject as error:
            return unavailable_form("damaged", f"{name} in {self._target.url} is damaged: {error}")
        except ObjectStorageDown as error:
            return unavailable_form("unreachable", f"{name} cannot be loaded: {error}")
        except TimeoutError:
            return unavailable_form(
                "unreachable", f"{name} cannot be loaded: {self._target.url} has not answered for {LOAD_TIMEOUT:g} s"
            )
        return form

    async def delete_unused(self, project: str, addresses: Collection[bytes]) -> int:
        """Delete those of these objects that no row names; return how many. Raises `ObjectStorageDown`."""
        for ref in [one for one in self._cache if one.address in addresses]:
            self._take_from_cache(ref)
        if not addresses:
            return 0
        bucket = await asyncio.to_thread(lambda: self.bucket)
        return await delete_unused(self._database, bucket, project, addresses)

    async def collect(self, projects: Iterable[str]) -> int:
        """Delete the objects that no row names; return how many. Raises `ObjectStorageDown`."""
        bucket = await asyncio.to_thread(lambda: self.bucket)
        return await collect_objects(self._database, bucket, self.keys, projects, self._now())

    def counts(self) -> dict[str, int]:
        """Return what was counted since the start, by the names of metrics."""
        return {
            "objects_written_total": self.written,
            "objects_written_bytes_total": self.written_bytes,
            "objects_failed_total": self.failures,
        }

    def _take_from_cache(self, ref: ObjectRef) -> bytes | None:
        """Return what was just written, once: later reads are of the object itself."""
        form = self._cache.pop(ref, None)
        self._cached -= len(form or b"")
        return form

    def _remember(self, ref: ObjectRef, form: bytes) -> None:
        if len(form) > CACHE_SIZE // 4 or ref in self._cache:
            return
        self._cache[ref] = form
        self._cached += len(form)
        while self._cached > CACHE_SIZE:
            self._cached -= len(self._cache.popitem(last=False)[1])

    def _note_failure(self, reason: str) -> None:
        self._retry_at = time.monotonic() + self._pause
        if self.trouble is None:
            log.warning(
                "object storage: %s. Large bodies are stored in the database meanwhile, and nothing is lost.", reason
            )
        self._trouble = reason

    def _note_success(self) -> None:
        if self.trouble is not None:
            log.info("object storage %s works again", self._target.url)
        self._trouble = None
        self._retry_at = 0.0
