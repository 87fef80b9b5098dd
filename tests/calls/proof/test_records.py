"""Records and their links."""

import hashlib

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from calls.codec.canonical import canonical_json
from calls.proof.records import FIRST_LINK, ChainRecord, commit, fold_links, leaf_bytes, next_link, record_members

CHAIN = "0199e2a5-0000-7000-8000-000000000001/0199e2a5-0000-7000-8000-000000000002"
HASHES = st.none() | st.binary(min_size=32, max_size=32)
TIMES = st.none() | st.integers(0, (1 << 63) - 1)
RECORDS = st.builds(
    ChainRecord,
    kind=st.sampled_from(["run", "exchange", "gap", "end", "moved", "erased"]),
    id=st.uuids().map(str) | st.just(""),
    head=HASHES,
    request=HASHES,
    response=HASHES,
    at=TIMES,
    began=TIMES,
    part=st.none() | st.sampled_from(["whole", "run"]),
)


@given(st.lists(RECORDS, max_size=4))
def test_links_are_digests_of_canonical_json(records: list[ChainRecord]) -> None:
    link = FIRST_LINK
    for place, record in enumerate(records):
        link = hashlib.sha256(link + canonical_json(record_members(CHAIN, place, record))).digest()
    assert fold_links(CHAIN, records) == (len(records), link)


@given(RECORDS, RECORDS)
def test_a_link_names_its_chain_its_place_and_every_member(one: ChainRecord, other: ChainRecord) -> None:
    link = next_link(FIRST_LINK, CHAIN, 0, one)
    assert (link == next_link(FIRST_LINK, CHAIN, 0, other)) == (one == other)
    assert link != next_link(FIRST_LINK, CHAIN, 1, one)
    assert link != next_link(FIRST_LINK, CHAIN[:-1] + "9", 0, one)
    assert link != next_link(link, CHAIN, 0, one)


@given(RECORDS)
def test_a_record_is_stored_and_read(record: ChainRecord) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=ChainRecord) == record


def test_a_commitment_is_a_salted_digest_and_a_leaf_canonical_json() -> None:
    assert commit(b"salt", b"part") == hashlib.sha256(b"saltpart").digest()
    leaf = leaf_bytes(CHAIN, 7, bytes(32))
    assert leaf == canonical_json({"size": 7, "head": "00" * 32, "chain": CHAIN})
