-- A claim, a rest and an end write a run's row anew. Most of the row was its encoded record, which no claim changes and only readers need: it is now
-- in a table of its own.
CREATE TABLE holdfast.doc (
  bucket smallint NOT NULL,
  run    bigint NOT NULL,
  data   bytea NOT NULL,
  PRIMARY KEY (run, bucket)          -- the number first: what is born comes last, which costs least
) {hash bucket};
INSERT INTO holdfast.doc (bucket, run, data) SELECT bucket, id, doc FROM holdfast.run;
ALTER TABLE holdfast.run DROP COLUMN doc;

-- What each owner holds is counted by queue and tenant. But runs with an owner have just been written, and the server looked into their rows anyway.
DROP INDEX holdfast.run_owner;
CREATE INDEX run_owner ON holdfast.run (owner) WHERE owner IS NOT NULL;

-- Each run is written anew at least twice, which adds each of its keys again beside the first. Pages of these indexes are filled only half, so that
-- they have room for that and are not split by the first claim. The indexes are made anew, so that this applies to existing runs too.
ALTER TABLE holdfast.run DROP CONSTRAINT run_pkey;
ALTER TABLE holdfast.run ADD PRIMARY KEY (run_id, bucket) WITH (deduplicate_items = off, fillfactor = 50);
DROP INDEX holdfast.run_lane_holder;
CREATE UNIQUE INDEX run_lane_holder ON holdfast.run (session_key, tenant_id, lane{, bucket}) WITH (deduplicate_items = off, fillfactor = 50) WHERE holds;

{tuned}
