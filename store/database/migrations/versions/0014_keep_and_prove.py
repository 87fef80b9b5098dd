"""Add what proves that the record was not altered, and what erasing needs."""

from alembic import op

revision = "0014"
down_revision = "0013"

SALTS = """
ALTER TABLE runs ADD COLUMN salt bytea;
ALTER TABLE exchanges ADD COLUMN salt bytea;
ALTER TABLE gaps ADD COLUMN salt bytea
"""

# Runs that one batch began had one incarnation; a chain belongs to one run.
INCARNATIONS = """
UPDATE runs SET incarnation = gen_random_uuid() FROM (
    SELECT project, incarnation FROM runs GROUP BY project, incarnation HAVING count(*) > 1
) AS shared WHERE runs.project = shared.project AND runs.incarnation = shared.incarnation
"""

PROOF = """
CREATE TABLE chains (
    project text NOT NULL,
    incarnation uuid NOT NULL,
    server uuid NOT NULL,
    size bigint NOT NULL,
    head bytea NOT NULL,
    is_unsealed boolean NOT NULL,
    is_urgent boolean NOT NULL,
    CONSTRAINT chains_pkey PRIMARY KEY (project, incarnation, server)
);
CREATE INDEX chains_unsealed_idx ON chains (project, server) WHERE is_unsealed;
COMMENT ON TABLE chains IS 'The hash chain of each run and store server: how many records it has, and its head.';
CREATE TABLE chain_records (
    project text NOT NULL,
    incarnation uuid NOT NULL,
    server uuid NOT NULL,
    first bigint NOT NULL,
    records bytea NOT NULL,
    link bytea NOT NULL,
    CONSTRAINT chain_records_pkey PRIMARY KEY (project, incarnation, server, first)
);
COMMENT ON TABLE chain_records IS 'The records of hash chains: salted commitments to what was stored, without its content.';
CREATE TABLE tree_leaves (
    project text NOT NULL,
    server uuid NOT NULL,
    place bigint NOT NULL,
    incarnation uuid NOT NULL,
    size bigint NOT NULL,
    head bytea NOT NULL,
    CONSTRAINT tree_leaves_pkey PRIMARY KEY (project, server, place)
);
CREATE INDEX tree_leaves_project_incarnation_server_place_idx ON tree_leaves (project, incarnation, server, place);
COMMENT ON TABLE tree_leaves IS 'The heads of chains in the order in which they entered the tree of their store server.';
CREATE TABLE tree_tiles (
    project text NOT NULL,
    server uuid NOT NULL,
    level integer NOT NULL,
    place bigint NOT NULL,
    hashes bytea NOT NULL,
    CONSTRAINT tree_tiles_pkey PRIMARY KEY (project, server, level, place)
);
COMMENT ON TABLE tree_tiles IS 'The hashes of the tree, up to 256 a row (C2SP tlog-tiles).';
CREATE TABLE checkpoints (
    project text NOT NULL,
    server uuid NOT NULL,
    size bigint NOT NULL,
    signed_at bigint NOT NULL,
    note text NOT NULL,
    CONSTRAINT checkpoints_pkey PRIMARY KEY (project, server, size)
);
COMMENT ON TABLE checkpoints IS 'Signed roots of the tree (C2SP tlog-checkpoint).'
"""

RETENTION = """
ALTER TABLE runs ADD COLUMN encoding uuid;
ALTER TABLE runs ADD COLUMN bodies_erased_at bigint;
ALTER TABLE exchanges ALTER COLUMN request_digest DROP NOT NULL;
ALTER TABLE exchanges ALTER COLUMN request_body DROP NOT NULL;
CREATE TABLE expirations (
    project text NOT NULL,
    day date NOT NULL,
    run text NOT NULL,
    part text NOT NULL,
    CONSTRAINT expirations_pkey PRIMARY KEY (project, day, run, part)
);
CREATE INDEX expirations_project_run_idx ON expirations (project, run);
COMMENT ON TABLE expirations IS 'What retention has decided and not yet removed from the partitions.'
"""


def upgrade() -> None:
    for part in (SALTS, INCARNATIONS, PROOF, RETENTION):
        for statement in part.split(";"):
            op.execute(statement)
