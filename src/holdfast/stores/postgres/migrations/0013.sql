-- Due runs are walked line by line (queue, priority, tenant) from the last to the first: all three in one order, so that what is between two lines is
-- one range of the index.
DROP INDEX holdfast.run_due;
CREATE INDEX run_due ON holdfast.run (queue, priority, tenant_id, due, turn) WITH (deduplicate_items = off) WHERE due IS NOT NULL AND owner IS NULL AND NOT behind;
