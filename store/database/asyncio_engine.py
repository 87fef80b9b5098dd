"""SQLAlchemy's engine for asyncio, imported without SQLAlchemy's ORM, which its package imports and nothing here uses."""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection as AsyncConnection
    from sqlalchemy.ext.asyncio import AsyncEngine as AsyncEngine
    from sqlalchemy.ext.asyncio import create_async_engine as create_async_engine
else:
    _PACKAGE = "sqlalchemy.ext.asyncio"
    _is_imported = _PACKAGE in sys.modules
    if not _is_imported:
        # A package that is not executed. Whoever imports it later gets the real one, with the same engine.
        sys.modules[_PACKAGE] = module_from_spec(find_spec(_PACKAGE))
    try:
        _engine = import_module(f"{_PACKAGE}.engine")
    finally:
        if not _is_imported:
            del sys.modules[_PACKAGE]
    AsyncConnection = _engine.AsyncConnection
    AsyncEngine = _engine.AsyncEngine
    create_async_engine = _engine.create_async_engine


async def driver_connection(connection: AsyncConnection) -> asyncpg.Connection:
    """Return the connection of asyncpg below one of SQLAlchemy, in whose transaction a statement has been executed."""
    driver: asyncpg.Connection | None = (await connection.get_raw_connection()).driver_connection
    assert driver is not None
    return driver
