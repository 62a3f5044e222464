-- Who drives a run finds it by its owner: only those that nobody drives are found by their status, so that a claim takes a run out of that index and
-- writes nothing into it.
DROP INDEX holdfast.run_status;
CREATE INDEX run_status ON holdfast.run (status, run_id) WHERE owner IS NULL;

-- Rows that are written anew put the same key into each index once more. Where a page is full of such, the server merges equal keys before it divides the
-- page, which makes room for a few: it is full again soon, and each time the server looks first which of them nobody sees any more. In indexes in which a
-- key has but one run nothing else is ever merged: there a page is divided at once.
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
