"""Delete objects that no row names: after an erasure those that it has left, and with retention whatever else there is.

Two kinds are found. Of an object whose row nothing uses, a writer may be about to store the first use, so it must be older than an hour;
then its row is locked, looked at again, and deleted with it. An object without a row was left by a killed process, or by an older state of
the database; it must be older than a day, and gets a row while it is deleted, for which a writer of the same object waits.

A restored backup has the keys of the original and other rows. So the objects of a key belong to one database, which the object
`owner/KEY` names: any other reads them, and neither writes nor deletes any.
"""

import uuid
from collections.abc import Collection, Iterable
from typing import Final

import asyncpg

from store.database.connection import Database
from store.database.object_forms import ObjectStorageDown
from store.objects import registry
from store.objects.bucket import Bucket, ObjectMissing
from store.objects.object_keys import ObjectKeys, object_path

GRACE: Final = 3600 * 1_000_000_000
"""Nanoseconds from when an object was last reserved until it may be deleted."""

STRAY_GRACE: Final = 24 * GRACE
PAGE: Final = 500


async def collect_objects(
    database: Database, bucket: Bucket, keys: ObjectKeys, projects: Iterable[str], now: int
) -> int:
    """Delete what nothing names; return how much. Raises `ObjectStorageDown`; what is deleted by then is."""
    deleted_size = 0
    for project in projects:
        deleted_size += await _collect_unused(database, bucket, project, now - GRACE)
        deleted_size += await _collect_strays(database, bucket, keys, project, now - STRAY_GRACE)
    return deleted_size


async def require_owner(connection: asyncpg.Connection, bucket: Bucket, key_id: bytes) -> None:
    """Return if the objects of a key belong to this database, or to none yet. Raises `ObjectStorageDown`."""
    own = await connection.fetchval(IDENTITY)
    path = f"owner/{key_id.hex()}"
    try:
        owner = (await bucket.get(path)).decode(errors="replace")
    except ObjectMissing:
        await bucket.put(path, own.encode())
        return
    if owner != own:
        raise ObjectStorageDown(
            f"the objects below {bucket.name}/{key_id.hex()} belong to another database, of which this may be a copy:"
            f" set another [objects] url, or delete {path} there if that database is gone"
        )


async def delete_unused(database: Database, bucket: Bucket, project: str, addresses: Collection[bytes]) -> int:
    """Delete those of these objects that no row names, at once. Raises `ObjectStorageDown`."""
    return sum([await _delete_if_unused(database, bucket, project, address) for address in sorted(set(addresses))])


async def _collect_unused(database: Database, bucket: Bucket, project: str, before: int) -> int:
    deleted_size, after = 0, b""
    while True:
        async with database.connection() as connection:
            rows = await connection.fetch(registry.UNUSED, project, before, after, PAGE)
        if not rows:
            return deleted_size
        deleted_size += await delete_unused(database, bucket, project, [row["address"] for row in rows])
        after = rows[-1]["address"]


async def _delete_if_unused(database: Database, bucket: Bucket, project: str, address: bytes) -> bool:
    async with database.connection() as connection, connection.transaction():
        row = await connection.fetchrow(registry.LOCK_UNUSED, project, address)
        # Looked at after the lock: whoever stores a use holds it until that is committed.
        if row is None or await connection.fetchval(registry.IS_USED, project, address):
            return False
        await require_owner(connection, bucket, row["key_id"])
        await bucket.delete(object_path(row["key_id"], address))
        await connection.execute(registry.DELETE, project, address)
    return True


async def _collect_strays(database: Database, bucket: Bucket, keys: ObjectKeys, project: str, before: int) -> int:
    deleted_size = 0
    for key_id in await _key_ids(database, keys, project):
        async with database.connection() as connection:
            await require_owner(connection, bucket, key_id)
        async for page in bucket.list(f"{key_id.hex()}/"):
            old = {name: one.path for one in page if one.changed_at < before and (name := _address(one.path))}
            async with database.connection() as connection:
                rows = await connection.fetch(registry.KNOWN, project, list(old))
            for address in old.keys() - {row["address"] for row in rows}:
                deleted_size += await _delete_stray(database, bucket, project, key_id, address, old[address])
    return deleted_size


async def _key_ids(database: Database, keys: ObjectKeys, project: str) -> list[bytes]:
    async with database.connection() as connection:
        found = {row["key_id"] for row in await connection.fetch(registry.KEY_IDS, project)}
    if (own := keys.id_of(project)) is not None:
        found.add(own)
    return sorted(found)


async def _delete_stray(
    database: Database, bucket: Bucket, project: str, key_id: bytes, address: bytes, path: str
) -> bool:
    async with database.connection() as connection, connection.transaction():
        if await connection.fetchval(registry.CLAIM_STRAY, project, address, key_id, uuid.uuid4()) is None:
            return False
        await bucket.delete(path)
        await connection.execute(registry.DELETE, project, address)
    return True


def _address(path: str) -> bytes:
    """The address in the path of an object; empty for another path."""
    try:
        return bytes.fromhex(path.rpartition("/")[2])
    except ValueError:
        return b""


IDENTITY = """
SELECT system_identifier || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()) FROM pg_control_system()
"""
"""A copy of a database in another server or under another name has another one."""
