-- Long conversations (§4.15): runs that carry on from other runs' logs, and lookups that do not grow with a thread.

-- Whose log a run's first checkpoint carries its thread on from. A prune looks here for runs that need those to be deleted; a
-- run with an origin of its own (a WHOLE numbered 0) needs no other run any more.
CREATE TABLE carry (
  source INTEGER NOT NULL,
  run    INTEGER NOT NULL,
  PRIMARY KEY (source, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX carry_run ON carry (run);

-- The key is separate from the data: a search among rows without a rowid reads each row it passes as a whole, which may be
-- megabytes.
ALTER TABLE whole RENAME TO whole_1;
CREATE TABLE whole (
  id   INTEGER PRIMARY KEY,
  run  INTEGER NOT NULL,
  seq  INTEGER NOT NULL,           -- of the commit that saved it; 0: an origin, which no commit saved
  log  INTEGER NOT NULL,
  data BLOB NOT NULL,
  UNIQUE (run, seq)
) STRICT;
INSERT INTO whole (run, seq, log, data) SELECT run, seq, log, data FROM whole_1;
DROP TABLE whole_1;

-- Which runs are open in a session, among thousands that have ended.
CREATE INDEX run_session_open ON run (session_key, run_id) WHERE status NOT IN ('completed', 'failed', 'canceled');
