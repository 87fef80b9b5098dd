-- Distribute the tables of Playhead over the nodes of a Citus cluster, by project. Run it once, after the store server has made the tables
-- and before it has recorded much:  psql "$DATABASE_URL" -v ON_ERROR_STOP=1 -f deploy/citus.sql
--
-- All rows of a project are on one node, so that every statement and every join of Playhead goes to one node. Partitions that exist, and
-- those that the store server attaches later, are distributed as their tables are. `tests/store/database/test_citus.py` checks that this
-- list is complete. Playhead's own tests do not run Citus: see docs/scale.md before you depend on it.

CREATE EXTENSION IF NOT EXISTS citus;

SELECT create_distributed_table('runs', 'project');
SELECT create_distributed_table('exchanges', 'project', colocate_with => 'runs');
SELECT create_distributed_table('calls', 'project', colocate_with => 'runs');
SELECT create_distributed_table('parts', 'project', colocate_with => 'runs');
SELECT create_distributed_table('text_groups', 'project', colocate_with => 'runs');
SELECT create_distributed_table('text_hashes', 'project', colocate_with => 'runs');
SELECT create_distributed_table('gaps', 'project', colocate_with => 'runs');
SELECT create_distributed_table('effects', 'project', colocate_with => 'runs');
SELECT create_distributed_table('replays', 'project', colocate_with => 'runs');
SELECT create_distributed_table('processes', 'project', colocate_with => 'runs');
SELECT create_distributed_table('feed', 'project', colocate_with => 'runs');
SELECT create_distributed_table('feed_positions', 'project', colocate_with => 'runs');
SELECT create_distributed_table('run_totals', 'project', colocate_with => 'runs');
SELECT create_distributed_table('call_sums', 'project', colocate_with => 'runs');
SELECT create_distributed_table('day_sums', 'project', colocate_with => 'runs');
SELECT create_distributed_table('summed_days', 'project', colocate_with => 'runs');
SELECT create_distributed_table('model_days', 'project', colocate_with => 'runs');
SELECT create_distributed_table('model_answers', 'project', colocate_with => 'runs');
SELECT create_distributed_table('audit_log', 'project', colocate_with => 'runs');
SELECT create_distributed_table('chains', 'project', colocate_with => 'runs');
SELECT create_distributed_table('chain_records', 'project', colocate_with => 'runs');
SELECT create_distributed_table('tree_leaves', 'project', colocate_with => 'runs');
SELECT create_distributed_table('tree_tiles', 'project', colocate_with => 'runs');
SELECT create_distributed_table('checkpoints', 'project', colocate_with => 'runs');
SELECT create_distributed_table('expirations', 'project', colocate_with => 'runs');
SELECT create_distributed_table('anchors', 'project', colocate_with => 'runs');
SELECT create_distributed_table('objects', 'project', colocate_with => 'runs');
SELECT create_distributed_table('object_uses', 'project', colocate_with => 'runs');
SELECT create_distributed_table('canaries', 'project', colocate_with => 'runs');
