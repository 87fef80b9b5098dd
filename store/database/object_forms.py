"""Forms of bytes that are in object storage, and how these bytes get into their place before a form is decoded.

    5  size of the bytes (8), id of the key (8), address (32)

A form of this kind stands where any form that is not composed may stand, also within a composed one. Whoever decodes forms first fills
them in: with the content of the object, a form as well, or with the reason why there is none.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from store.database.blobs import COMPOSED, OBJECT, BodyUnavailable, split_composed, unavailable_form

NOT_SET: Final = "are in object storage, and no [objects] url is set here: set it as where they were recorded"

KEY_ID_SIZE: Final = 8
ADDRESS_SIZE: Final = 32
_LENGTH: Final = 1 + 8 + KEY_ID_SIZE + ADDRESS_SIZE


class ObjectRef(NamedTuple):
    """Which object has some bytes."""

    key_id: bytes
    """Of the key of its project with which it is encrypted."""

    address: bytes
    """A keyed digest of the bytes."""

    size: int
    """How many bytes they are."""


class WrittenObject(NamedTuple):
    """An object that was written, and may be named by a row if its own row has the same generation (`store.objects.registry`)."""

    ref: ObjectRef
    generation: uuid.UUID


class ObjectStorage(Protocol):
    """Where objects are."""

    @property
    def threshold(self) -> int | None:
        """Bytes from which content becomes an object; None: none does."""

    async def write(self, project: str, contents: Mapping[bytes, bytes]) -> dict[bytes, WrittenObject]:
        """Write an object of each content. Return those that were written, by the same names. Raises `DatabaseUnavailable` alone."""

    async def delete_unused(self, project: str, addresses: Collection[bytes]) -> int:
        """Delete those of these objects that no row names; return how many. Raises `ObjectStorageDown`."""

    async def find_absence(self, project: str, refs: Collection[ObjectRef]) -> BodyUnavailable | None:
        """Return why one of these objects cannot be loaded, as far as that is known without loading them; None if they can."""

    async def check(self) -> str | None:
        """Return why objects cannot be written and read; None if they can, or if there is no object storage."""

    async def collect(self, projects: Iterable[str]) -> int:
        """Delete the objects that no row names; return how many. Raises `ObjectStorageDown`."""

    def counts(self) -> dict[str, int]:
        """Return what was counted since the start, by the names of metrics; empty without object storage."""

    def take_counts(self) -> dict[str, int]:
        """Return the counts and begin again at zero."""

    def add_counts(self, counts: Mapping[str, int], trouble: str | None) -> None:
        """Add what another process has counted, and note why it writes nothing."""

    @property
    def trouble(self) -> str | None:
        """Why nothing is written to object storage at present."""

    async def load(self, project: str, refs: Collection[ObjectRef]) -> dict[ObjectRef, bytes]:
        """Return the content of each as a form that decodes by itself, or the form of its absence. Never raises for one of them."""


class ObjectStorageDown(Exception):
    """Object storage cannot be used at present; the message says why."""


class NoObjectStorage:
    """Nowhere."""

    @property
    def threshold(self) -> int | None:
        """None: nothing becomes an object."""
        return None

    async def write(self, project: str, contents: Mapping[bytes, bytes]) -> dict[bytes, WrittenObject]:
        """Write nothing."""
        del project, contents
        return {}

    async def delete_unused(self, project: str, addresses: Collection[bytes]) -> int:
        """Raise `ObjectStorageDown` if there is anything to delete."""
        if addresses:
            raise ObjectStorageDown(f"{len(addresses)} objects of project {project} {NOT_SET}")
        return 0

    async def find_absence(self, project: str, refs: Collection[ObjectRef]) -> BodyUnavailable | None:
        """Return that there is no object storage, if there are objects."""
        del project
        return BodyUnavailable("unreachable", f"the bytes {NOT_SET}") if refs else None

    async def check(self) -> str | None:
        """None."""
        return None

    async def collect(self, projects: Iterable[str]) -> int:
        """Delete nothing."""
        del projects
        return 0

    def counts(self) -> dict[str, int]:
        """Nothing."""
        return {}

    def take_counts(self) -> dict[str, int]:
        """Nothing."""
        return {}

    def add_counts(self, counts: Mapping[str, int], trouble: str | None) -> None:
        """Add nothing."""

    @property
    def trouble(self) -> str | None:
        """None."""
        return None

    async def load(self, project: str, refs: Collection[ObjectRef]) -> dict[ObjectRef, bytes]:
        """Return the reason for each."""
        del project
        reason = f"the bytes {NOT_SET}"
        return {ref: unavailable_form("unreachable", reason) for ref in refs}


def object_form(ref: ObjectRef) -> bytes:
    """Return the form of bytes that are in an object."""
    return OBJECT + ref.size.to_bytes(8) + ref.key_id + ref.address


def named_objects(form: bytes | None) -> Iterator[ObjectRef]:
    """Yield the object that a form names, if it names one."""
    if form is None:
        return
    if form[:1] == COMPOSED:
        form = split_composed(form)[1]
    if form[:1] == OBJECT and len(form) == _LENGTH:
        yield ObjectRef(form[9 : 9 + KEY_ID_SIZE], form[9 + KEY_ID_SIZE :], int.from_bytes(form[1:9]))


def fill_in(form: bytes, contents: Mapping[ObjectRef, bytes]) -> bytes:
    """Put the content of the object that a form names into its place."""
    for ref in named_objects(form):
        if ref in contents:
            return contents[ref] if form[:1] == OBJECT else split_composed(form)[0] + contents[ref]
    return form


def objects_of(forms: Iterable[bytes | None]) -> frozenset[ObjectRef]:
    """Return the objects that forms name."""
    return frozenset(ref for form in forms for ref in named_objects(form))
