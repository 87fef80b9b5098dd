"""Merkle trees of RFC 6962 (2.1), and the checks of their proofs by RFC 9162 (2.1.3.2, 2.1.4.2).

A node is named by its level and its index in the level: it is the root of the 2**level leaves from index * 2**level on. Functions that make
proofs read the nodes of complete subtrees through a `ReadNode`, so that the tree may be stored in any way.
"""

import hashlib
from collections.abc import Callable, Sequence

type ReadNode = Callable[[int, int], bytes]
"""Returns the hash of a complete subtree by its level and index."""


def leaf_hash(leaf: bytes) -> bytes:
    """The hash of a leaf."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def tree_root(size: int, read_node: ReadNode) -> bytes:
    """The root of the first `size` leaves."""
    return _range_hash(0, size, read_node) if size else hashlib.sha256().digest()


def inclusion_path(index: int, size: int, read_node: ReadNode) -> list[bytes]:
    """The hashes that lead from a leaf to the root of the first `size` leaves (RFC 6962 2.1.1)."""
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not among the first {size}")
    path: list[bytes] = []
    begin, end = 0, size
    while end - begin > 1:
        middle = begin + _largest_power_below(end - begin)
        if index < middle:
            path.append(_range_hash(middle, end, read_node))
            end = middle
        else:
            path.append(_range_hash(begin, middle, read_node))
            begin = middle
    return path[::-1]


def consistency_path(old: int, new: int, read_node: ReadNode) -> list[bytes]:
    """The hashes that show that a tree of `new` leaves begins with the `old` ones (RFC 6962 2.1.2)."""
    if not 0 < old <= new:
        raise ValueError(f"there is no proof from {old} to {new} leaves")
    path: list[bytes] = []
    begin, end, is_known = 0, new, True
    while old < end:
        middle = begin + _largest_power_below(end - begin)
        if old <= middle:
            path.append(_range_hash(middle, end, read_node))
            end = middle
        else:
            path.append(_range_hash(begin, middle, read_node))
            begin, is_known = middle, False
    if not is_known:
        path.append(_range_hash(begin, end, read_node))
    return path[::-1]


def is_included(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Whether a leaf with this hash is at this index of the tree with this size and root."""
    if not 0 <= index < size:
        return False
    last, found = size - 1, leaf
    for hash_beside in path:
        if last == 0:
            return False
        if index & 1 or index == last:
            found = node_hash(hash_beside, found)
            while not index & 1 and index:
                index, last = index >> 1, last >> 1
        else:
            found = node_hash(found, hash_beside)
        index, last = index >> 1, last >> 1
    return last == 0 and found == root


def is_consistent(old: int, old_root: bytes, new: int, new_root: bytes, path: Sequence[bytes]) -> bool:
    """Whether the tree with `new` leaves begins with the leaves of the one with `old` leaves."""
    if old == new:
        return old_root == new_root and not path
    if not 0 < old < new or not path:
        return False
    # A complete old tree is itself the first hash, and is not repeated.
    hashes = [old_root, *path] if old & (old - 1) == 0 else list(path)
    index, last = old - 1, new - 1
    while index & 1:
        index, last = index >> 1, last >> 1
    first = second = hashes[0]
    for each in hashes[1:]:
        if last == 0:
            return False
        if index & 1 or index == last:
            first, second = node_hash(each, first), node_hash(each, second)
            while not index & 1 and index:
                index, last = index >> 1, last >> 1
        else:
            second = node_hash(second, each)
        index, last = index >> 1, last >> 1
    return last == 0 and first == old_root and second == new_root


def _range_hash(begin: int, end: int, read_node: ReadNode) -> bytes:
    """The hash of a range of leaves that a tree's division yields: its beginning is a multiple of its largest subtree."""
    size = end - begin
    level = size.bit_length() - 1
    if size == 1 << level:
        return read_node(level, begin >> level)
    middle = begin + (1 << level)
    return node_hash(_range_hash(begin, middle, read_node), _range_hash(middle, end, read_node))


def _largest_power_below(size: int) -> int:
    return 1 << (size - 1).bit_length() - 1
