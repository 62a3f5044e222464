-- When a run ended, by which prunes find what is old without reading what runs hold. It repeats what `doc` says, and the checker compares them. Null:
-- the run has not ended, or a release before this one wrote its end, or that cannot be read; prunes look at those among them that have ended one by one.

ALTER TABLE run ADD COLUMN ended INTEGER;
UPDATE run SET ended = holdfast_end(doc) WHERE status IN ('completed', 'failed', 'canceled');
CREATE INDEX run_ended ON run (ended) WHERE ended IS NOT NULL;
CREATE INDEX run_end_unknown ON run (id) WHERE ended IS NULL AND (status = 'completed' OR status = 'failed' OR status = 'canceled');

-- Each write of a run's row is compared with the conditions of its indexes. A list of words is built and looked through each time; single words are compared.
DROP INDEX run_session_open;
CREATE INDEX run_session_open ON run (session_key, run_id) WHERE status <> 'completed' AND status <> 'failed' AND status <> 'canceled';
