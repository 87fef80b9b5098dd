"""The tree of a project in Postgres, as tiles of up to 256 hashes (https://c2sp.org/tlog-tiles): append leaves, read nodes.

The tile at (0, n) has the hashes of the leaves from 256 n on, the tile at (level + 1, n) the roots of the full tiles of `level` from 256 n
on. So appending writes few rows however large the tree is, and a proof reads a row for each of its levels.
"""

import uuid
from collections.abc import Callable, Collection, Iterable
from typing import Final

import asyncpg

from calls.proof.tree import ReadNode, node_hash, tree_root

HEIGHT: Final = 8
WIDTH: Final = 1 << HEIGHT
_HASH: Final = 32

type Place = tuple[int, int]
"""The level and number of a tile."""


class Tiles:
    """Tiles in memory."""

    def __init__(self, hashes: dict[Place, bytes]) -> None:
        self._hashes = hashes
        self.changed: set[Place] = set()

    def __getitem__(self, place: Place) -> bytes:
        return self._hashes[place]

    def append(self, size: int, leaf: bytes) -> None:
        """Append the hash of a leaf to a tree of `size` leaves. Raises KeyError where a tile is missing or too short."""
        level = 0
        while True:
            place = (level, size >> HEIGHT)
            hashes = self._hashes.get(place, b"")
            if len(hashes) != size % WIDTH * _HASH:
                raise KeyError(place)
            self._hashes[place] = hashes + leaf
            self.changed.add(place)
            if (size + 1) % WIDTH:
                return
            leaf = _fold(self._hashes[place])
            level, size = level + 1, size >> HEIGHT

    def read_node(self, level: int, index: int) -> bytes:
        """Return the root of a complete subtree. Raises KeyError where its tile is missing or too short."""
        place, begin, end = _span(level, index)
        hashes = self._hashes[place][begin * _HASH : end * _HASH]
        if len(hashes) != (end - begin) * _HASH:
            raise KeyError(place)
        return _fold(hashes)


async def load_last_tiles(connection: asyncpg.Connection, project: str, server: uuid.UUID, size: int) -> Tiles:
    """Load the tiles that leaves are appended to, and that the root of `size` leaves depends on."""
    places = [(level, size >> HEIGHT * (level + 1)) for level in range(_levels(size) + 1)]
    return Tiles(await _load_hashes(connection, project, server, places))


class TreeNodes:
    """Nodes of a tree that has `total` leaves in all, for several computations: each tile is loaded once."""

    def __init__(self, connection: asyncpg.Connection, project: str, server: uuid.UUID, total: int) -> None:
        self._connection = connection
        self._project = project
        self._server = server
        self._total = total
        self._hashes: dict[Place, bytes] = {}
        self._tiles = Tiles(self._hashes)
        self._nodes: dict[Place, bytes] = {}

    async def prepare(self, computations: Iterable[Callable[[ReadNode], object]]) -> None:
        """Load the tiles that these computations need. Where one is missing, the computation raises."""
        if places := {place for one in computations for place in _places_of(one)} - self._hashes.keys():
            self._hashes |= await _load_hashes(self._connection, self._project, self._server, places)

    def compute[T](self, computation: Callable[[ReadNode], T]) -> T:
        """Run a computation whose tiles are loaded, such as `inclusion_path`.

        Raises KeyError where a tile is missing, or has more or fewer hashes than it should have.
        """
        for place in _places_of(computation):
            level, number = place
            if len(self._hashes[place]) != min(WIDTH, (self._total >> HEIGHT * level) - (number << HEIGHT)) * _HASH:
                raise KeyError(place)
        return computation(self._read_node)

    async def load[T](self, computation: Callable[[ReadNode], T]) -> T:
        """Load what a computation needs, and run it. Raises KeyError as `compute` does."""
        await self.prepare([computation])
        return self.compute(computation)

    def _read_node(self, level: int, index: int) -> bytes:
        if (node := self._nodes.get((level, index))) is None:
            node = self._nodes[level, index] = self._tiles.read_node(level, index)
        return node


async def load_nodes[T](
    connection: asyncpg.Connection, project: str, server: uuid.UUID, total: int, compute: Callable[[ReadNode], T]
) -> T:
    """Run one computation over nodes of a tree (`TreeNodes.load`)."""
    return await TreeNodes(connection, project, server, total).load(compute)


async def load_root(connection: asyncpg.Connection, project: str, server: uuid.UUID, total: int, size: int) -> bytes:
    """Compute the root of the first `size` leaves. Raises KeyError as `load_nodes` does."""
    return await load_nodes(connection, project, server, total, lambda read_node: tree_root(size, read_node))


async def store_tiles(connection: asyncpg.Connection, project: str, server: uuid.UUID, tiles: Tiles) -> None:
    """Write the tiles that have changed."""
    rows = [(project, server, *place, tiles[place]) for place in sorted(tiles.changed)]
    await connection.executemany(STORE, rows)


def _places_of(computation: Callable[[ReadNode], object]) -> set[Place]:
    """The tiles of the nodes that a computation reads."""
    places: set[Place] = set()

    def note_place(level: int, index: int) -> bytes:
        places.add(_span(level, index)[0])
        return b""

    computation(note_place)
    return places


def _span(level: int, index: int) -> tuple[Place, int, int]:
    """The tile of a node, and the first and last hash of it in the tile."""
    tile_level, height = divmod(level, HEIGHT)
    first = index << height
    begin = first % WIDTH
    return (tile_level, first >> HEIGHT), begin, begin + (1 << height)


def _fold(hashes: bytes) -> bytes:
    """The root of a complete subtree, from its lowest hashes."""
    nodes = [hashes[at : at + _HASH] for at in range(0, len(hashes), _HASH)]
    while len(nodes) > 1:
        nodes = [node_hash(left, right) for left, right in zip(nodes[::2], nodes[1::2], strict=True)]
    return nodes[0]


def _levels(size: int) -> int:
    """The highest level of the tiles of a tree."""
    return max(size.bit_length() - 1, 0) // HEIGHT


async def _load_hashes(
    connection: asyncpg.Connection, project: str, server: uuid.UUID, places: Collection[Place]
) -> dict[Place, bytes]:
    levels, numbers = _columns(places)
    rows = await connection.fetch(LOAD, project, server, levels, numbers)
    return {(row["level"], row["place"]): row["hashes"] for row in rows}


def _columns(places: Iterable[Place]) -> tuple[list[int], list[int]]:
    pairs = list(places)
    return [level for level, _ in pairs], [number for _, number in pairs]


LOAD = """
SELECT level, tree_tiles.place, hashes FROM tree_tiles
JOIN unnest($3::integer[], $4::bigint[]) AS wanted (tile_level, place)
    ON level = tile_level AND tree_tiles.place = wanted.place
WHERE project = $1 AND server = $2
"""

STORE = """
INSERT INTO tree_tiles (project, server, level, place, hashes) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (project, server, level, place) DO UPDATE SET hashes = excluded.hashes
"""
