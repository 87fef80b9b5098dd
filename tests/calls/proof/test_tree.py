"""Merkle trees, judged by the vectors of Certificate Transparency and by every proof of small trees."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.proof.tree import (
    ReadNode,
    consistency_path,
    inclusion_path,
    is_consistent,
    is_included,
    leaf_hash,
    node_hash,
    tree_root,
)

# From merkletree/merkle_tree_test.cc of google/certificate-transparency, as Go's and Rust's implementations have them too.
LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
INCLUSION = {
    (0, 1): [],
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
    (1, 5): [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
CONSISTENCY = {
    (1, 1): [],
    (1, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}


def nodes(leaves: list[bytes]) -> ReadNode:
    """The complete subtrees of a tree, by definition."""

    def read_node(level: int, index: int) -> bytes:
        if level == 0:
            return leaf_hash(leaves[index])
        return node_hash(read_node(level - 1, 2 * index), read_node(level - 1, 2 * index + 1))

    return read_node


PUBLISHED = nodes([bytes.fromhex(leaf) for leaf in LEAVES])
NUMBERED = nodes([b"%d" % number for number in range(40)])


def test_roots_are_the_published_ones() -> None:
    assert [tree_root(size, PUBLISHED).hex() for size in range(1, 9)] == ROOTS
    assert tree_root(0, PUBLISHED) == hashlib.sha256(b"").digest()


def test_paths_are_the_published_ones() -> None:
    assert {at: [each.hex() for each in inclusion_path(*at, PUBLISHED)] for at in INCLUSION} == INCLUSION
    assert {at: [each.hex() for each in consistency_path(*at, PUBLISHED)] for at in CONSISTENCY} == CONSISTENCY


def test_every_path_of_small_trees_is_accepted_for_its_own_leaf_and_tree_only() -> None:
    for size in range(1, 40):
        root = tree_root(size, NUMBERED)
        for index in range(size):
            path = inclusion_path(index, size, NUMBERED)
            accepted = [i for i in range(size) if is_included(leaf_hash(b"%d" % i), index, size, path, root)]
            assert accepted == [index]
            accepted = [i for i in range(-1, size + 1) if is_included(leaf_hash(b"%d" % index), i, size, path, root)]
            assert accepted == [index]
        for old in range(1, size + 1):
            path = consistency_path(old, size, NUMBERED)
            accepted = [n for n in range(size + 2) if is_consistent(n, tree_root(old, NUMBERED), size, root, path)]
            assert accepted == [old]


@given(st.data())
def test_a_path_with_any_change_is_refused(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 40))
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size - 1))
    root, leaf = tree_root(size, NUMBERED), leaf_hash(b"%d" % index)
    inclusion, consistency = inclusion_path(index, size, NUMBERED), consistency_path(old, size, NUMBERED)

    def change(path: list[bytes]) -> list[bytes]:
        place = data.draw(st.integers(0, len(path) - 1))
        kind = data.draw(st.sampled_from(["flip", "drop", "repeat"]))
        flipped = bytes([path[place][0] ^ 1]) + path[place][1:]
        new = {"flip": [flipped], "drop": [], "repeat": [path[place]] * 2}[kind]
        return [*path[:place], *new, *path[place + 1 :]]

    assert not is_included(leaf, index, size, change(inclusion), root)
    assert not is_consistent(old, tree_root(old, NUMBERED), size, root, change(consistency))


@pytest.mark.parametrize("index", [-1, 8])
def test_a_leaf_outside_the_tree_has_no_path(index: int) -> None:
    with pytest.raises(ValueError, match="not among the first 8"):
        inclusion_path(index, 8, PUBLISHED)
    with pytest.raises(ValueError, match="no proof"):
        consistency_path(0 if index < 0 else 9, 8, PUBLISHED)
