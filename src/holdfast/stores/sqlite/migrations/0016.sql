-- When a run ended, by which prunes find old runs without reading their content. It repeats what `doc` says, and the checker compares them. Null: the
-- run has not ended, an earlier release wrote its end, or that cannot be read; prunes examine the ended runs among these one by one.

ALTER TABLE run ADD COLUMN ended INTEGER;
UPDATE run SET ended = holdfast_end(doc) WHERE status IN ('completed', 'failed', 'canceled');
CREATE INDEX run_ended ON run (ended) WHERE ended IS NOT NULL;
CREATE INDEX run_end_unknown ON run (id) WHERE ended IS NULL AND (status = 'completed' OR status = 'failed' OR status = 'canceled');

-- Each write of a run's row is compared with the conditions of its indexes. A list of words is built and searched each time; single words are only
-- compared.
DROP INDEX run_session_open;
CREATE INDEX run_session_open ON run (session_key, run_id) WHERE status <> 'completed' AND status <> 'failed' AND status <> 'canceled';
