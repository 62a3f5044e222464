-- A claim, a rest and an end write a run's row anew. Most of the row was its encoded record, which no claim changes and only readers need: it lies beside now.
CREATE TABLE holdfast.doc (
  bucket smallint NOT NULL,
  run    bigint NOT NULL,
  data   bytea NOT NULL,
  PRIMARY KEY (run, bucket)          -- the number first: what is born comes last, which costs least
) {hash bucket};
INSERT INTO holdfast.doc (bucket, run, data) SELECT bucket, id, doc FROM holdfast.run;
ALTER TABLE holdfast.run DROP COLUMN doc;

-- Who holds what is counted by queue and tenant. But what somebody drives has just been written, and the server looked into its row anyway.
DROP INDEX holdfast.run_owner;
CREATE INDEX run_owner ON holdfast.run (owner) WHERE owner IS NOT NULL;

-- Each run is written anew at least twice, so that each of its keys comes again beside the first: a page of these indexes is left with room for that, or it is
-- divided by the first claim. They are made anew, so that it holds of runs that are here already.
ALTER TABLE holdfast.run DROP CONSTRAINT run_pkey;
ALTER TABLE holdfast.run ADD PRIMARY KEY (run_id, bucket) WITH (deduplicate_items = off, fillfactor = 50);
DROP INDEX holdfast.run_lane_holder;
CREATE UNIQUE INDEX run_lane_holder ON holdfast.run (session_key, tenant_id, lane{, bucket}) WITH (deduplicate_items = off, fillfactor = 50) WHERE holds;

{tuned}
