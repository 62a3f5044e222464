-- Limits (§10.11): what was set, by name, with who set it; when each rate's bucket would be full again; and the calls that hold a limit,
-- or wait for one, by the place of the call. What is in use is counted from them and from the runs' owners.
CREATE TABLE holdfast.rule (
  name text PRIMARY KEY,
  data bytea NOT NULL
);
CREATE TABLE holdfast.bucket (
  name    text PRIMARY KEY,
  full_at bigint NOT NULL
);
CREATE TABLE holdfast.call (
  place  text NOT NULL,
  name   text NOT NULL,
  owner  text,                       -- null: it waits
  run_id text NOT NULL,
  since  bigint NOT NULL,
  PRIMARY KEY (place, name)
);
CREATE INDEX call_owner ON holdfast.call (owner, name) WHERE owner IS NOT NULL;
CREATE INDEX call_line ON holdfast.call (name, since) WHERE owner IS NULL;
CREATE INDEX call_run ON holdfast.call (run_id);

-- Due runs are walked by tenant within a queue and a priority, so that no tenant starves the others.
DROP INDEX holdfast.run_due;
CREATE INDEX run_due ON holdfast.run (queue, priority DESC, tenant_id, due, turn) WHERE due IS NOT NULL AND owner IS NULL;
-- What each owner holds is counted by queue and tenant.
DROP INDEX holdfast.run_owner;
CREATE INDEX run_owner ON holdfast.run (owner, queue, tenant_id) WHERE owner IS NOT NULL;
