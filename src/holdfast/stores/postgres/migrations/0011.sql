-- A run with an owner is found by its owner: only runs without one are found by their status, so that a claim removes a run from that index and
-- writes nothing into it.
DROP INDEX holdfast.run_status;
CREATE INDEX run_status ON holdfast.run (status, run_id) WHERE owner IS NULL;

-- A row that is written anew adds the same key to each index once more. When a page is full of such entries, the server merges equal keys before it
-- splits the page. That makes room for a few entries only, so the page is soon full again, and each time the server first checks which entries nobody
-- sees any more. In indexes in which a key has only one run, nothing else is ever merged: there a page is split at once.
DO $$
DECLARE
  it regclass;
BEGIN
  FOR it IN SELECT i.indexrelid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE c.relkind = 'i' AND (i.indrelid = 'holdfast.run'::regclass OR i.indrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'holdfast.run'::regclass))
    AND NOT EXISTS (SELECT 1 FROM pg_class k WHERE k.relname IN ('run_owner', 'run_ended') AND k.oid IN (i.indexrelid, (SELECT inhparent FROM pg_inherits WHERE inhrelid = i.indexrelid)))
  LOOP
    EXECUTE 'ALTER INDEX ' || it || ' SET (deduplicate_items = off)';
  END LOOP;
END
$$;
