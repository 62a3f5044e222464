-- A claim writes each index that a run is in, so no index should have what another finds. The index of names finds runs and gives them in their
-- order; a run that is a lineage or a thread by itself is found by its name; the holder of a lane is found by the lane, and is not among those
-- that wait.
DROP INDEX holdfast.run_id;
ALTER TABLE holdfast.run DROP CONSTRAINT run_bucket_run_id_key;
ALTER TABLE holdfast.run ADD CONSTRAINT run_id UNIQUE (run_id, bucket);
DROP INDEX holdfast.run_thread;
CREATE INDEX run_thread ON holdfast.run (thread_id, run_id) WHERE thread_id <> run_id;
DROP INDEX holdfast.run_thread_turn;
CREATE INDEX run_thread_turn ON holdfast.run (thread_id, turn) WHERE thread_id <> run_id;
DROP INDEX holdfast.run_lineage;
CREATE INDEX run_lineage ON holdfast.run (lineage_root, run_id) WHERE lineage_root <> run_id;
DROP INDEX holdfast.run_lane_holder;
CREATE UNIQUE INDEX run_lane_holder ON holdfast.run (session_key, tenant_id, lane{, bucket}) WHERE holds;
DROP INDEX holdfast.run_lane_queue;
CREATE INDEX run_lane_queue ON holdfast.run (tenant_id, session_key, lane, turn) WHERE due IS NOT NULL AND NOT holds;
DROP INDEX holdfast.run_session_open;
CREATE INDEX run_session_open ON holdfast.run (session_key, run_id) WHERE NOT holds AND status NOT IN ('completed', 'failed', 'canceled');

-- These functions call functions that are at most stable, and so are they: the server then inlines them instead of calling them for each row.
ALTER FUNCTION holdfast.standing(text, bigint, text, bigint, boolean, bigint) STABLE;
ALTER FUNCTION holdfast.standing(text, bigint, text, bigint, boolean, bigint, text, text) STABLE;
