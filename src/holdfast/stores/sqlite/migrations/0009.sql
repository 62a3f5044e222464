-- Limits (§10.11): what was set, by name, with who set it; when each rate's bucket would be full again; and the calls that hold a limit,
-- or wait for one, by the place of the call. What is in use is counted from them and from the runs' owners.

CREATE TABLE rule (
  name TEXT PRIMARY KEY,
  data BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE bucket (
  name    TEXT PRIMARY KEY,
  full_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE call (
  place  TEXT NOT NULL,
  name   TEXT NOT NULL,
  owner  TEXT,                    -- null: it waits
  run_id TEXT NOT NULL,
  since  INTEGER NOT NULL,
  PRIMARY KEY (place, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX call_owner ON call (owner, name) WHERE owner IS NOT NULL;
CREATE INDEX call_line ON call (name, since) WHERE owner IS NULL;
CREATE INDEX call_run ON call (run_id);

-- Due runs are walked by tenant within a queue and a priority, so that no tenant starves the others; status is in the index so that it
-- can be counted.
DROP INDEX run_due;
CREATE INDEX run_due ON run (queue, priority, tenant_id, due, turn, status) WHERE due IS NOT NULL AND owner IS NULL;
-- What each owner holds is counted by queue and tenant.
DROP INDEX run_owner;
CREATE INDEX run_owner ON run (owner, queue, tenant_id) WHERE owner IS NOT NULL;
