"""What proves the record: chains, the tree over them, signed checkpoints, and who vouches for them."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, Table, Text, Uuid, text

from store.database.tables.common import metadata, primary_key

chains = Table(
    "chains",
    metadata,
    Column("project", Text, nullable=False),
    Column("incarnation", Uuid, nullable=False),  # of its run
    Column("server", Uuid, nullable=False),  # the store server that appends to it
    Column("size", BigInteger, nullable=False),
    Column("head", LargeBinary, nullable=False),  # the link of its last record: `proof.records`
    Column("is_unsealed", Boolean, nullable=False),  # whether it has records that are in no leaf of the tree
    Column("is_urgent", Boolean, nullable=False),  # whether one of these is of the end of its run, or of an erasure
    primary_key("incarnation", "server"),
    Index("chains_unsealed_idx", "project", "server", postgresql_where=text("is_unsealed")),
    # Each batch of a run updates its row, which changes no index while there is room in the page.
    postgresql_with={"fillfactor": 70},
    comment="The hash chain of each run and store server: how many records it has, and its head.",
)

chain_records = Table(
    "chain_records",
    metadata,
    Column("project", Text, nullable=False),
    Column("incarnation", Uuid, nullable=False),
    Column("server", Uuid, nullable=False),
    Column("first", BigInteger, nullable=False),  # the place of the first of these records in its chain
    Column("records", LargeBinary, nullable=False),  # MessagePack of `proof.records`
    Column("link", LargeBinary, nullable=False),  # of the last of them
    primary_key("incarnation", "server", "first"),
    comment="The records of hash chains: salted commitments to what was stored, without its content.",
)

tree_leaves = Table(
    "tree_leaves",
    metadata,
    Column("project", Text, nullable=False),
    Column("server", Uuid, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("incarnation", Uuid, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("head", LargeBinary, nullable=False),
    primary_key("server", "place"),
    Index(None, "project", "incarnation", "server", "place"),
    comment="The heads of chains in the order in which they entered the tree of their store server.",
)

tree_tiles = Table(
    "tree_tiles",
    metadata,
    Column("project", Text, nullable=False),
    Column("server", Uuid, nullable=False),
    Column("level", Integer, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("hashes", LargeBinary, nullable=False),  # SHA-256, 32 bytes each
    primary_key("server", "level", "place"),
    comment="The hashes of the tree, up to 256 a row (C2SP tlog-tiles).",
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("project", Text, nullable=False),
    Column("server", Uuid, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("signed_at", BigInteger, nullable=False),
    Column("note", Text, nullable=False),
    primary_key("server", "size"),
    comment="Signed roots of the tree (C2SP tlog-checkpoint).",
)

anchors = Table(
    "anchors",
    metadata,
    Column("project", Text, nullable=False),
    Column("server", Uuid, nullable=False),
    Column("size", BigInteger, nullable=False),  # of the checkpoint
    Column("kind", Text, nullable=False),  # witness, timestamp
    Column("by", Text, nullable=False),  # the name of the witness, or the URL of the authority
    Column("at", BigInteger, nullable=False),  # when it says to have signed
    Column("content", LargeBinary, nullable=False),  # a line of a signed note, or a response in DER
    primary_key("server", "size", "kind", "by"),
    Index(None, "project", "server", "kind", "by", "size"),  # the newest of each
    comment="Cosignatures of checkpoints by witnesses (C2SP tlog-witness), and timestamps of RFC 3161.",
)
