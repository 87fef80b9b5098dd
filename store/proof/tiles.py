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
    return await _load(connection, project, server, places)


async def load_nodes[T](
    connection: asyncpg.Connection, project: str, server: uuid.UUID, total: int, compute: Callable[[ReadNode], T]
) -> T:
    """Run a computation over nodes of the tree, which has `total` leaves in all, such as `inclusion_path`.

    Raises KeyError where a tile is missing, or has more or fewer hashes than it should have.
    """
    spans: set[Place] = set()

    def note_place(level: int, index: int) -> bytes:
        spans.add(_span(level, index)[0])
        return b""

    compute(note_place)
    tiles = await _load(connection, project, server, spans)
    for place in spans:
        level, number = place
        if len(tiles[place]) != min(WIDTH, (total >> HEIGHT * level) - (number << HEIGHT)) * _HASH:
            raise KeyError(place)
    return compute(tiles.read_node)


async def load_root(connection: asyncpg.Connection, project: str, server: uuid.UUID, total: int, size: int) -> bytes:
    """Compute the root of the first `size` leaves. Raises KeyError as `load_nodes` does."""
    return await load_nodes(connection, project, server, total, lambda read_node: tree_root(size, read_node))


async def store_tiles(connection: asyncpg.Connection, project: str, server: uuid.UUID, tiles: Tiles) -> None:
    """Write the tiles that have changed."""
    rows = [(project, server, *place, tiles[place]) for place in sorted(tiles.changed)]
    await connection.executemany(STORE, rows)


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


async def _load(connection: asyncpg.Connection, project: str, server: uuid.UUID, places: Collection[Place]) -> Tiles:
    levels, numbers = _columns(places)
    rows = await connection.fetch(LOAD, project, server, levels, numbers)
    return Tiles({(row["level"], row["place"]): row["hashes"] for row in rows})


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
