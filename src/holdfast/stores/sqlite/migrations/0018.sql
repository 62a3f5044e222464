-- A record and its voucher may be lost together, and no log has the schedules, links, limits and tombstones. So the store counts them: how many of a
-- kind there must be, and the sum of a digest of their ids.

CREATE TABLE roll (
  kind TEXT PRIMARY KEY,
  n INTEGER NOT NULL,
  sum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO roll (kind, n, sum) SELECT 'schedule', count(*), ifnull(sum(weigh('schedule', schedule_id)), 0) FROM schedule;
INSERT INTO roll (kind, n, sum) SELECT 'limit', count(*), ifnull(sum(weigh('limit', name)), 0) FROM rule;
INSERT INTO roll (kind, n, sum) SELECT 'token', count(*), ifnull(sum(weigh('token', lower(hex(hash)))), 0) FROM token;
INSERT INTO roll (kind, n, sum) SELECT 'pruned', count(*), ifnull(sum(weigh('pruned', run_id)), 0) FROM pruned;
