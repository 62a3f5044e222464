-- A claim, a rest and an end write a run's row anew, and most of it was what only births, rests and ends change and only readers need: it lies beside now.
CREATE TABLE holdfast.doc (
  bucket smallint NOT NULL,
  run    bigint NOT NULL,
  data   bytea NOT NULL,
  PRIMARY KEY (run, bucket)          -- the number first: what is born comes last, which costs least
) {hash bucket};
INSERT INTO holdfast.doc (bucket, run, data) SELECT bucket, id, doc FROM holdfast.run;
ALTER TABLE holdfast.run DROP COLUMN doc;

-- Who holds what is counted by queue and tenant too, but what somebody drives has just been written, so that it was looked up in its row anyway.
DROP INDEX holdfast.run_owner;
CREATE INDEX run_owner ON holdfast.run (owner) WHERE owner IS NOT NULL;

-- Each run is written anew at least twice, so that each of its keys comes again beside the first: a page of these indexes is left with room for that, or it is
-- divided by the first claim.
DO $$
DECLARE
  it regclass;
BEGIN
  FOR it IN SELECT i.indexrelid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE c.relkind = 'i' AND (i.indrelid = 'holdfast.run'::regclass OR i.indrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'holdfast.run'::regclass))
    AND EXISTS (SELECT 1 FROM pg_class k WHERE k.relname IN ('run_pkey', 'run_lane_holder') AND k.oid IN (i.indexrelid, (SELECT inhparent FROM pg_inherits WHERE inhrelid = i.indexrelid)))
  LOOP
    EXECUTE 'ALTER INDEX ' || it || ' SET (fillfactor = 50)';
  END LOOP;
END
$$;

{tuned}
