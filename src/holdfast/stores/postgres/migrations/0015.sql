-- A record and its voucher may be lost together, and no log has the schedules, links, limits and tombstones. So the store counts them: how many of a
-- kind there must be, and the sum of a digest of their ids. Each connection counts in a row of its own, so that no transaction waits for another.
CREATE OR REPLACE FUNCTION holdfast.weigh(kind text, id text) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT ('x' || encode(substring(sha256(convert_to(kind || chr(31) || id, 'UTF8')) FROM 1 FOR 4), 'hex'))::bit(32)::bigint
$$;
CREATE TABLE holdfast.roll (
  kind  text NOT NULL,
  shard integer NOT NULL,
  n     bigint NOT NULL,
  sum   bigint NOT NULL,
  PRIMARY KEY (kind, shard)
) WITH (fillfactor = 50);
INSERT INTO holdfast.roll (kind, shard, n, sum) SELECT 'schedule', 0, count(*), coalesce(sum(holdfast.weigh('schedule', schedule_id)), 0) FROM holdfast.schedule;
INSERT INTO holdfast.roll (kind, shard, n, sum) SELECT 'limit', 0, count(*), coalesce(sum(holdfast.weigh('limit', name)), 0) FROM holdfast.rule;
INSERT INTO holdfast.roll (kind, shard, n, sum) SELECT 'token', 0, count(*), coalesce(sum(holdfast.weigh('token', encode(hash, 'hex'))), 0) FROM holdfast.token;
INSERT INTO holdfast.roll (kind, shard, n, sum) SELECT 'pruned', 0, count(*), coalesce(sum(holdfast.weigh('pruned', run_id)), 0) FROM holdfast.pruned;
